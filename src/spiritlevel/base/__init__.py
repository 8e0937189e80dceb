"""What everything stands on: tensors, estimates, operators, errors, contexts, progress."""
