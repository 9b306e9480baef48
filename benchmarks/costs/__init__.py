"""What a conversation costs: traffic to replay, tokens, prefixes, the guidance, a chart. Used by `benchmarks.cost`."""
