"""May this answer end? What grounds it is asked once, of the model that gave it. Pure: values in, values out."""
