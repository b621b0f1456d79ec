"""The comparators of a trained model: rules that learn nothing."""
