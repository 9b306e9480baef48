"""What is ours: formats, chunks, citations, labels and pictures. Pure: text and parts in, values out."""
