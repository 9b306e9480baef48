"""What was asked and cited: keys, questions, boundary, declarations, records. Pure: values in, values out."""
