"""What the client needs from the world it runs in, once for asyncio and once for threads.

The client's source is written against these names only; `tools/unasync.py` turns it into its blocking twin by dropping
`async` and `await` and exchanging the backend. Both modules offer:

    Mutex             guards short steps; never held over an await. A plain lock in both worlds
    Lock              guards steps that wait, as a context manager
    Signal            set(), clear(), is_set(), wait(timeout_s) -> whether it was set in time
    Stream            connect(...), send(buffers, timeout_s), drain(timeout_s), receive(timeout_s), finish(), stale(),
                      abort(), close()
    Delivery          the future outcome of one produced record
    spawn(fn, name)   runs fn beside the caller -> Task with join(timeout_s)
    sleep(seconds)    a pause
    checkpoint()      lets other work run, where that needs help

Time-outs are seconds, None waits for ever. A wait that fails raises `TimeoutError`, a broken connection `OSError`.
Background work ends by itself when it is told to (a flag, a signal, an aborted stream): a thread cannot be cancelled, so
neither world relies on it.
"""
