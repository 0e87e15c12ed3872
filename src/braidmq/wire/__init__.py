"""Wire protocols as pure functions of bytes: nothing here knows of sockets, files, clocks or the broker."""
