"""What the benchmarks of the running gateway share: bodies, a load generator, and the servers that are compared."""
