"""Clock, disk, errors, limits and configuration: what every layer stands on."""
