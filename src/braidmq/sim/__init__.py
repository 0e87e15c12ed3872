"""A cluster inside one process: virtual time, a seeded network, disks that lose what was not synced, and the real broker code."""
