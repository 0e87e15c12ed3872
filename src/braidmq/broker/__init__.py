"""Topics, groups and the rules around them: what the broker does, whichever protocol asks."""
