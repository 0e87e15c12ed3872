# fq's messages: `pure_fq.py` says what each function does.

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize

cdef enum:
    FQ_TAG = 80
    FQ_ID_BYTES = 16
    FQ_ATTRS_HEAD_BYTES = 10
    IN_SWITCH = 3

cdef uint32_t FQ_NAME_BYTES_MAX = limits.FQ_NAME_BYTES_MAX
cdef uint32_t FQ_HOPS_MAX = limits.FQ_HOPS_MAX
cdef Py_ssize_t FQ_TAIL_BYTES_MAX = 2 + limits.FQ_NAME_BYTES_MAX + 4 * limits.FQ_HOPS_MAX

SWITCH = IN_SWITCH


cdef bint fq_is_tail(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Whether these bytes are a sender and hops, as they stand in a frame."""
    if size < 2 or size > FQ_TAIL_BYTES_MAX or p[0] > FQ_NAME_BYTES_MAX or <Py_ssize_t>p[0] + 1 >= size:
        return False
    return p[p[0] + 1] <= FQ_HOPS_MAX and size == 2 + <Py_ssize_t>p[0] + 4 * <Py_ssize_t>p[p[0] + 1]


def parse_messages(buffer, Py_ssize_t start, Py_ssize_t stop, RouteTable routes not None, uint64_t lane,
                   bytes sender_and_hops not None, uint64_t payload_max, list dirty not None, ByteBuffer out not None):
    cdef Py_buffer view
    cdef const uint8_t* b
    cdef const uint8_t* tail = <const uint8_t*>PyBytes_AS_STRING(sender_and_hops)
    cdef Py_ssize_t tail_size = PyBytes_GET_SIZE(sender_and_hops)
    cdef Py_ssize_t position = start, route_at, id_at, payload_at, frame_end, row_bytes, attrs_size
    cdef Py_ssize_t attrs_bytes = FQ_ATTRS_HEAD_BYTES + FQ_ID_BYTES + tail_size
    cdef uint32_t exchange_size, route_size, size, number
    cdef uint16_t tag = FQ_TAG
    cdef uint8_t attrs_head[FQ_ATTRS_HEAD_BYTES]
    cdef int count = 0, status = IN_NEED_MORE
    cdef Route route = None
    cdef Accumulator accumulator = None
    cdef void* found
    cdef uint8_t* row
    cdef uint8_t* block
    if not fq_is_tail(tail, tail_size):
        raise BraidError("INVALID_ARGUMENT", reason="sender and hops are not as a frame has them")
    number = <uint32_t>(6 + FQ_ID_BYTES + tail_size)
    memcpy(attrs_head, &number, 4)
    memcpy(attrs_head + 4, &tag, 2)
    number = <uint32_t>(FQ_ID_BYTES + tail_size)
    memcpy(attrs_head + 6, &number, 4)
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        b = <const uint8_t*>view.buf
        if stop > view.len:
            stop = view.len
        while position < stop:
            exchange_size = b[position]
            if exchange_size > FQ_NAME_BYTES_MAX:
                status = IN_OTHER_FRAME
                break
            route_at = position + 1 + <Py_ssize_t>exchange_size
            if route_at >= stop:
                break
            route_size = b[route_at]
            if route_size > FQ_NAME_BYTES_MAX:
                status = IN_OTHER_FRAME
                break
            id_at = route_at + 1 + <Py_ssize_t>route_size
            payload_at = id_at + FQ_ID_BYTES + 4
            if payload_at > stop:
                break
            size = be32(b + payload_at - 4)
            if size > payload_max or <Py_ssize_t>route_size + <Py_ssize_t>size > RECORD_BYTES_MAX:
                status = IN_OTHER_FRAME
                break
            frame_end = payload_at + <Py_ssize_t>size
            if frame_end > stop:
                break
            if accumulator is None:
                found = routes.find(b + position + 1, exchange_size)
                if found == NULL:
                    status = IN_OTHER_FRAME
                    break
                route = <Route>found
                accumulator = <Accumulator>route.accumulators[<Py_ssize_t>(lane % <uint64_t>len(route.accumulators))]
                if route.level > out.level:
                    out.level = route.level
            elif (<Py_ssize_t>exchange_size != PyBytes_GET_SIZE(route.topic)
                  or memcmp(PyBytes_AS_STRING(route.topic), b + position + 1, exchange_size) != 0):
                status = IN_SWITCH
                break
            if not accumulator.writable:
                status = IN_OTHER_FRAME
                break
            attrs_size = 0 if accumulator.attrs is None else PyByteArray_GET_SIZE(accumulator.attrs)
            row_bytes = 16 + <Py_ssize_t>route_size + <Py_ssize_t>size
            if accumulator.count and (accumulator.rows_size + attrs_size + row_bytes + attrs_bytes > <Py_ssize_t>FLUSH_BYTES_TARGET
                                      or accumulator.count >= BATCH_RECORDS_MAX):
                status = IN_FULL
                break
            accumulator.room(row_bytes)
            accumulator.extras()
            if accumulator.attrs is None:
                accumulator.attrs = bytearray()
            PyByteArray_Resize(accumulator.attrs, attrs_size + attrs_bytes)
            if not accumulator.dirty:
                accumulator.dirty = True
                dirty.append(accumulator)
            block = <uint8_t*>PyByteArray_AS_STRING(accumulator.attrs) + attrs_size
            memcpy(block, attrs_head, FQ_ATTRS_HEAD_BYTES)
            memcpy(block + FQ_ATTRS_HEAD_BYTES, b + id_at, FQ_ID_BYTES)
            memcpy(block + FQ_ATTRS_HEAD_BYTES + FQ_ID_BYTES, tail, tail_size)
            accumulator.expiry[accumulator.count] = 0
            accumulator.attrs_at[accumulator.count] = <uint32_t>attrs_size
            accumulator.has_attrs = True
            row = accumulator.slab.rows + accumulator.rows_size
            put_be32(row, route_size)
            memcpy(row + 4, b + route_at + 1, route_size)
            row += 4 + route_size
            # The payload's length stands in front of it on the wire as in a row.
            memcpy(row, b + payload_at - 4, 4 + <Py_ssize_t>size)
            put_be64(row + 4 + <Py_ssize_t>size, accumulator.next_offset)
            accumulator.note(route_size, size)
            route.counter += size
            count += 1
            position = frame_end
        return position, count, status, route if count else None
    finally:
        PyBuffer_Release(&view)


cdef const uint8_t* fq_origin(const uint8_t* batch, const BatchHead* head, uint32_t index, Py_ssize_t* size) noexcept nogil:
    """Id, sender and hops of a record, or NULL. Attributes come from many writers; what is not as it should be is not there."""
    cdef Py_ssize_t at, end, column = padded(4 * <Py_ssize_t>head.count), space = <Py_ssize_t>head.length - head.attrs_at
    cdef uint32_t number
    cdef uint16_t tag
    if not head.flags & FLAG_ATTRS:
        return NULL
    memcpy(&number, batch + head.rows_at - column + 4 * <Py_ssize_t>index, 4)
    if number == NO_ATTRS or <Py_ssize_t>number + 4 > space:
        return NULL
    at = <Py_ssize_t>head.attrs_at + number
    memcpy(&number, batch + at, 4)
    at += 4
    end = at + <Py_ssize_t>number
    if end > <Py_ssize_t>head.length:
        return NULL
    while end - at >= 6:
        memcpy(&tag, batch + at, 2)
        memcpy(&number, batch + at + 2, 4)
        at += 6
        if <Py_ssize_t>number > end - at:
            return NULL
        if tag == FQ_TAG:
            if number <= FQ_ID_BYTES or not fq_is_tail(batch + at + FQ_ID_BYTES, <Py_ssize_t>number - FQ_ID_BYTES):
                return NULL
            size[0] = <Py_ssize_t>number
            return batch + at
        at += <Py_ssize_t>number
    return NULL


cdef bint fq_passed(const uint8_t* tail, Py_ssize_t size, const uint8_t* node) noexcept nogil:
    cdef Py_ssize_t at = 2 + <Py_ssize_t>tail[0]
    while at < size:
        if memcmp(tail + at, node, 4) == 0:
            return True
        at += 4
    return False


def encode_deliveries(batches, uint64_t from_offset, uint64_t to_offset, bytes exchange not None, bytes default_tail not None,
                      bytes skip_node, bytes wanted, ByteBuffer out not None):
    cdef Py_buffer view
    cdef const uint8_t* b
    cdef const BatchHead* head
    cdef const uint8_t* row
    cdef const uint8_t* origin
    cdef const uint8_t* tail
    cdef const uint8_t* node = NULL
    cdef const uint8_t* mask = NULL
    cdef const char* fault
    cdef uint8_t* frame
    cdef Py_ssize_t exchange_size = PyBytes_GET_SIZE(exchange), position, left, tail_size, origin_size = 0, kept = out.size, mask_size = 0
    cdef uint32_t i, key_size, value_size, route_size
    cdef uint64_t next_offset = from_offset, offset, end
    cdef int count = 0
    if exchange_size > <Py_ssize_t>FQ_NAME_BYTES_MAX:
        raise BraidError("INVALID_ARGUMENT", reason="the exchange is too long")
    if not fq_is_tail(<const uint8_t*>PyBytes_AS_STRING(default_tail), PyBytes_GET_SIZE(default_tail)):
        raise BraidError("INVALID_ARGUMENT", reason="sender and hops are not as a frame has them")
    if skip_node is not None:
        if PyBytes_GET_SIZE(skip_node) != 4:
            raise BraidError("INVALID_ARGUMENT", reason="a node id has 4 bytes")
        node = <const uint8_t*>PyBytes_AS_STRING(skip_node)
    if wanted is not None:
        mask = <const uint8_t*>PyBytes_AS_STRING(wanted)
        mask_size = PyBytes_GET_SIZE(wanted)
    for data in batches:
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            b = <const uint8_t*>view.buf
            position = 0
            while position < view.len:
                head = <const BatchHead*>(b + position)
                fault = shape_fault(head, view.len - position)
                if fault != NULL:
                    raise BraidError("INVALID_BATCH", reason=fault.decode())
                if head.flags & FLAGS_OPAQUE:
                    raise BraidError("INVALID_BATCH", reason="compressed or encrypted batches are for the broker")
                if head.base_offset >= to_offset:
                    break
                end = head.base_offset + head.count
                if not head.flags & FLAG_CONTROL and end > next_offset:
                    row = b + position + head.rows_at
                    left = <Py_ssize_t>head.attrs_at - head.rows_at
                    for i in range(head.count):
                        offset = head.base_offset + i
                        if offset >= to_offset:
                            break
                        key_size = be32(row) if left >= 16 else <uint32_t>0xFFFFFFFF
                        if <Py_ssize_t>key_size > left - 16:
                            raise BraidError("INVALID_BATCH", reason="a row runs past its batch")
                        value_size = be32(row + 4 + key_size)
                        if <Py_ssize_t>value_size > left - 16 - <Py_ssize_t>key_size:
                            raise BraidError("INVALID_BATCH", reason="a row runs past its batch")
                        if offset >= next_offset and (mask == NULL or fq_wants(mask, mask_size, offset - from_offset)):
                            origin = fq_origin(b + position, head, i, &origin_size)
                            if origin != NULL:
                                tail = origin + FQ_ID_BYTES
                                tail_size = origin_size - FQ_ID_BYTES
                            else:
                                tail = <const uint8_t*>PyBytes_AS_STRING(default_tail)
                                tail_size = PyBytes_GET_SIZE(default_tail)
                            if node == NULL or not fq_passed(tail, tail_size, node):
                                route_size = key_size if key_size < FQ_NAME_BYTES_MAX else FQ_NAME_BYTES_MAX
                                frame = out.reserve(exchange_size + route_size + tail_size + 22 + <Py_ssize_t>value_size)
                                frame[0] = <uint8_t>exchange_size
                                memcpy(frame + 1, PyBytes_AS_STRING(exchange), exchange_size)
                                frame += 1 + exchange_size
                                frame[0] = <uint8_t>route_size
                                memcpy(frame + 1, row + 4, route_size)
                                frame += 1 + route_size
                                if origin != NULL:
                                    memcpy(frame, origin, FQ_ID_BYTES)
                                else:
                                    memset(frame, 0, 8)
                                    put_be64(frame + 8, offset)
                                frame += FQ_ID_BYTES
                                memcpy(frame, tail, tail_size)
                                memcpy(frame + tail_size, row + 4 + key_size, 4 + <Py_ssize_t>value_size)
                                out.size += exchange_size + route_size + tail_size + 22 + <Py_ssize_t>value_size
                                count += 1
                        row += 16 + <Py_ssize_t>key_size + <Py_ssize_t>value_size
                        left -= 16 + <Py_ssize_t>key_size + <Py_ssize_t>value_size
                end = end if end < to_offset else to_offset
                next_offset = end if end > next_offset else next_offset
                position += head.length
        except BaseException:
            out.size = kept
            raise
        finally:
            PyBuffer_Release(&view)
    out.frames += count
    return count, next_offset


cdef int fq_wants(const uint8_t* mask, Py_ssize_t size, uint64_t index) except -1:
    if index >= <uint64_t>size:
        raise BraidError("INVALID_ARGUMENT", reason="fewer wanted records than asked for")
    return mask[index] != 0
