"""Ready-made pipelines: what most people would write first, each a function and a command below `braid pipeline`."""
