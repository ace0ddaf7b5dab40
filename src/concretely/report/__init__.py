"""Tables, figures and pages. Nothing is computed here: results come from `evaluation` and `experiment`."""
