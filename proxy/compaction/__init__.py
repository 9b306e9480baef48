"""What goes instead: capsule, receipts, labels, and where they stand. Pure: a transcript and a record in, splices out."""
