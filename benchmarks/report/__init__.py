"""The dated benchmark report: accuracy, search, plans of a fixed set of questions, and the runtime, against the report before."""
