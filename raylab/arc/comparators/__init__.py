"""What stands beside a trained model: rules that learn nothing, and the published definitions."""
