"""The `braid` command: what people type. One module a command; `main` turns every fault into a line and an exit status."""
