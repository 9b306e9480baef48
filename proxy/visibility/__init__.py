"""They watch: logs, metrics, traces. Nothing in the house depends on what they see, and they never see content."""
