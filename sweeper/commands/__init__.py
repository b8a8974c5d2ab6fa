"""What the verbs do: words in, tables and files out; each returns its exit code."""
