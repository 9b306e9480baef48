"""What goes instead: capsule, receipts, labels, and where. Pure: a transcript and a record in, splices out."""
