"""Moving tensors between the members of a roster: one small contract, and its implementations."""
