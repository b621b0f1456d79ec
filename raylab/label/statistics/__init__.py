"""The figures of annotation runs: agreement, accuracy, people, drift."""
