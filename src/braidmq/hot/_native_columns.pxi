# Whole batches to columns and back, for readers and writers that work on columns. Twin: `pure_columns.py`.


def gather_columns(data, uint64_t from_offset, uint64_t to_offset, bint with_keys=True, bint with_values=True,
                   bint with_attrs=True):
    cdef Py_buffer view
    cdef const uint8_t* b
    cdef const BatchHead* head
    cdef const uint8_t* row
    cdef Py_ssize_t position = 0, stop, column, left, attrs_size, n = 0, keys_size = 0, values_size = 0, blocks_size = 0
    cdef Py_ssize_t filled = 0
    cdef uint32_t i, key_size, value_size, at, block
    cdef uint64_t next_offset = from_offset, offset
    cdef const char* fault
    cdef bytes offsets, stamps, key_ends, keys, value_ends, values, block_ends, blocks
    cdef int64_t* offsets_to
    cdef int64_t* stamps_to
    cdef int32_t* key_ends_to
    cdef int32_t* value_ends_to
    cdef int32_t* block_ends_to
    cdef uint8_t* keys_to
    cdef uint8_t* values_to
    cdef uint8_t* blocks_to
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        b = <const uint8_t*>view.buf
        stop = view.len
        # First everything is checked and counted, then it is copied without another look.
        while position < stop:
            head = <const BatchHead*>(b + position)
            fault = shape_fault(head, stop - position)
            if fault != NULL:
                raise BraidError("INVALID_BATCH", reason=fault.decode())
            if not checksum_ok(b + position):
                raise BraidError("INVALID_BATCH", reason="checksum mismatch")
            if head.base_offset >= to_offset:
                break
            if head.flags & FLAGS_OPAQUE:
                raise BraidError("INVALID_BATCH", reason="compressed or encrypted batches are for the broker")
            if head.base_offset + head.count <= from_offset or head.flags & FLAG_CONTROL:
                next_offset = max(next_offset, min(to_offset, head.base_offset + head.count))
                position += head.length
                continue
            column = padded(4 * <Py_ssize_t>head.count)
            left = head.attrs_at - head.rows_at
            row = b + position + head.rows_at
            attrs_size = head.length - head.attrs_at
            for i in range(head.count):
                if left < 16:
                    raise BraidError("INVALID_BATCH", reason="a row runs past its batch")
                key_size = be32(row)
                if key_size > left - 16:
                    raise BraidError("INVALID_BATCH", reason="a row runs past its batch")
                value_size = be32(row + 4 + key_size)
                if value_size > left - 16 - <Py_ssize_t>key_size:
                    raise BraidError("INVALID_BATCH", reason="a row runs past its batch")
                offset = head.base_offset + i
                if from_offset <= offset < to_offset:
                    n += 1
                    keys_size += key_size
                    values_size += value_size
                    if with_attrs and head.flags & FLAG_ATTRS:
                        memcpy(&at, b + position + head.rows_at - column + 4 * <Py_ssize_t>i, 4)
                        if at != NO_ATTRS:
                            if <uint64_t>at + 4 > <uint64_t>attrs_size:
                                raise BraidError("INVALID_BATCH", reason="attributes lie outside the batch")
                            memcpy(&block, b + position + head.attrs_at + at, 4)
                            if <uint64_t>at + 4 + block > <uint64_t>attrs_size:
                                raise BraidError("INVALID_BATCH", reason="attributes lie outside the batch")
                            blocks_size += 4 + <Py_ssize_t>block
                row += 16 + <Py_ssize_t>key_size + <Py_ssize_t>value_size
                left -= 16 + <Py_ssize_t>key_size + <Py_ssize_t>value_size
            next_offset = max(next_offset, min(to_offset, head.base_offset + head.count))
            position += head.length
        if max(keys_size, values_size, blocks_size) > 0x7FFFFFFF:
            raise BraidError("INVALID_ARGUMENT", reason="more than 2 GiB at once")
        offsets = PyBytes_FromStringAndSize(NULL, 8 * n)
        stamps = PyBytes_FromStringAndSize(NULL, 8 * n)
        key_ends = PyBytes_FromStringAndSize(NULL, 4 * (n + 1) if with_keys else 0)
        keys = PyBytes_FromStringAndSize(NULL, keys_size if with_keys else 0)
        value_ends = PyBytes_FromStringAndSize(NULL, 4 * (n + 1) if with_values else 0)
        values = PyBytes_FromStringAndSize(NULL, values_size if with_values else 0)
        block_ends = PyBytes_FromStringAndSize(NULL, 4 * (n + 1) if blocks_size else 0)
        blocks = PyBytes_FromStringAndSize(NULL, blocks_size)
        offsets_to = <int64_t*>PyBytes_AS_STRING(offsets)
        stamps_to = <int64_t*>PyBytes_AS_STRING(stamps)
        key_ends_to = <int32_t*>PyBytes_AS_STRING(key_ends)
        keys_to = <uint8_t*>PyBytes_AS_STRING(keys)
        value_ends_to = <int32_t*>PyBytes_AS_STRING(value_ends)
        values_to = <uint8_t*>PyBytes_AS_STRING(values)
        block_ends_to = <int32_t*>PyBytes_AS_STRING(block_ends)
        blocks_to = <uint8_t*>PyBytes_AS_STRING(blocks)
        stop = position
        position = keys_size = values_size = attrs_size = 0
        if with_keys:
            key_ends_to[0] = 0
        if with_values:
            value_ends_to[0] = 0
        if blocks_size:
            block_ends_to[0] = 0
        while position < stop:
            head = <const BatchHead*>(b + position)
            if head.base_offset + head.count <= from_offset or head.flags & FLAG_CONTROL:
                position += head.length
                continue
            column = padded(4 * <Py_ssize_t>head.count)
            row = b + position + head.rows_at
            for i in range(head.count):
                key_size = be32(row)
                value_size = be32(row + 4 + key_size)
                offset = head.base_offset + i
                if from_offset <= offset < to_offset:
                    offsets_to[filled] = <int64_t>offset
                    if head.flags & FLAG_TIMESTAMPS:
                        memcpy(&stamps_to[filled], b + position + HEADER_BYTES + 3 * column + 8 * <Py_ssize_t>i, 8)
                    else:
                        stamps_to[filled] = head.base_timestamp
                    filled += 1
                    if with_keys:
                        memcpy(keys_to + keys_size, row + 4, key_size)
                        keys_size += key_size
                        key_ends_to[filled] = <int32_t>keys_size
                    if with_values:
                        memcpy(values_to + values_size, row + 8 + key_size, value_size)
                        values_size += value_size
                        value_ends_to[filled] = <int32_t>values_size
                    if blocks_size:
                        if head.flags & FLAG_ATTRS:
                            memcpy(&at, b + position + head.rows_at - column + 4 * <Py_ssize_t>i, 4)
                            if at != NO_ATTRS:
                                memcpy(&block, b + position + head.attrs_at + at, 4)
                                memcpy(blocks_to + attrs_size, b + position + head.attrs_at + at, 4 + block)
                                attrs_size += 4 + <Py_ssize_t>block
                        block_ends_to[filled] = <int32_t>attrs_size
                row += 16 + <Py_ssize_t>key_size + <Py_ssize_t>value_size
            position += head.length
        return n, next_offset, offsets, stamps, key_ends, keys, value_ends, values, block_ends, blocks
    finally:
        PyBuffer_Release(&view)


cdef class _Column:
    """Cells of one column: where each ends, and their bytes. Checked once, so that a wrong end can reach nothing."""

    cdef Py_buffer ends_view, data_view
    cdef const int32_t* ends
    cdef const uint8_t* data
    cdef Py_ssize_t cells
    cdef bint held

    def __cinit__(self, ends, data):
        cdef Py_ssize_t i
        self.held = False
        PyObject_GetBuffer(ends, &self.ends_view, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(data, &self.data_view, PyBUF_SIMPLE)
        except BaseException:
            PyBuffer_Release(&self.ends_view)
            raise
        self.held = True
        self.ends = <const int32_t*>self.ends_view.buf
        self.data = <const uint8_t*>self.data_view.buf
        self.cells = self.ends_view.len // 4 - 1
        if self.cells < 0 or self.ends[0] < 0 or self.ends[self.cells] > self.data_view.len:
            raise BraidError("INVALID_ARGUMENT", reason="a column's cells lie outside its bytes")
        for i in range(self.cells):
            if self.ends[i + 1] < self.ends[i]:
                raise BraidError("INVALID_ARGUMENT", reason="a column's cells lie outside its bytes")

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.ends_view)
            PyBuffer_Release(&self.data_view)


def encode_columns(rows, key_ends, keys, value_ends, values, attr_ends=None, attrs=None):
    cdef Py_buffer rows_view
    cdef _Column key_column = None, value_column, attr_column = None
    cdef const int32_t* chosen
    cdef Py_ssize_t n, i, r, rows_size = 0, attrs_size = 0, head_size, total, column
    cdef uint16_t flags = 0
    cdef bytes batch
    cdef uint8_t* p
    cdef uint8_t* row
    cdef uint8_t* extra
    cdef uint32_t at, key_size, value_size, size
    cdef BatchHead* head
    value_column = _Column(value_ends, values)
    if key_ends is not None:
        key_column = _Column(key_ends, keys)
    if attr_ends is not None:
        attr_column = _Column(attr_ends, attrs)
    PyObject_GetBuffer(rows, &rows_view, PyBUF_SIMPLE)
    try:
        chosen = <const int32_t*>rows_view.buf
        n = rows_view.len // 4
        if n == 0 or n > BATCH_RECORDS_MAX:
            raise BraidError("INVALID_BATCH", reason="impossible record count")
        for i in range(n):
            r = chosen[i]
            if r < 0 or r >= value_column.cells or (key_column is not None and r >= key_column.cells) or (
                    attr_column is not None and r >= attr_column.cells):
                raise BraidError("INVALID_ARGUMENT", reason=f"there is no row {r}")
            rows_size += 16 + value_column.ends[r + 1] - value_column.ends[r]
            if key_column is not None:
                rows_size += key_column.ends[r + 1] - key_column.ends[r]
            if attr_column is not None:
                attrs_size += attr_column.ends[r + 1] - attr_column.ends[r]
        if attrs_size:
            flags = FLAG_ATTRS
        column = padded(4 * n)
        head_size = HEADER_BYTES + columns_bytes(<uint32_t>n, flags)
        total = padded(head_size + rows_size + attrs_size)
        if total > <Py_ssize_t>BATCH_BYTES_MAX:
            raise BraidError("INVALID_BATCH", reason=f"{total} bytes are over the limit of {BATCH_BYTES_MAX}")
        batch = PyBytes_FromStringAndSize(NULL, total)
        p = <uint8_t*>PyBytes_AS_STRING(batch)
        memset(p, 0, head_size)
        memset(p + total - 8, 0, 8)
        head = <BatchHead*>p
        row = p + head_size
        extra = row + rows_size
        for i in range(n):
            r = chosen[i]
            at = <uint32_t>(row - p - head_size)
            memcpy(p + HEADER_BYTES + 4 * i, &at, 4)
            key_size = 0
            if key_column is not None:
                key_size = <uint32_t>(key_column.ends[r + 1] - key_column.ends[r])
            put_be32(row, key_size)
            if key_size:
                memcpy(row + 4, key_column.data + key_column.ends[r], key_size)
            memcpy(p + HEADER_BYTES + column + 4 * i, &key_size, 4)
            row += 4 + key_size
            value_size = <uint32_t>(value_column.ends[r + 1] - value_column.ends[r])
            put_be32(row, value_size)
            memcpy(row + 4, value_column.data + value_column.ends[r], value_size)
            memcpy(p + HEADER_BYTES + 2 * column + 4 * i, &value_size, 4)
            row += 4 + value_size
            put_be64(row, <uint64_t>i)
            row += 8
            if flags:
                at = NO_ATTRS
                size = <uint32_t>(attr_column.ends[r + 1] - attr_column.ends[r])
                if size:
                    at = <uint32_t>(extra - p - head_size - rows_size)
                    memcpy(extra, attr_column.data + attr_column.ends[r], size)
                    extra += size
                memcpy(p + HEADER_BYTES + 3 * column + 4 * i, &at, 4)
        memset(extra, 0, p + total - extra)
        head.magic = MAGIC
        head.length = <uint32_t>total
        head.version = 1
        head.checksum_kind = 1
        head.flags = flags
        head.count = <uint32_t>n
        head.producer_id = -1
        head.base_sequence = -1
        head.producer_epoch = -1
        head.rows_at = <uint32_t>head_size
        head.attrs_at = <uint32_t>(head_size + rows_size)
        head.plain_length = <uint32_t>total
        head.checksum = crc_extend(0, p + CHECKSUM_FROM, total - CHECKSUM_FROM)
        return batch
    finally:
        PyBuffer_Release(&rows_view)


def hash_cells(ends, data):
    cdef _Column cells = _Column(ends, data)
    cdef bytes hashes = PyBytes_FromStringAndSize(NULL, 4 * cells.cells)
    cdef uint32_t* to = <uint32_t*>PyBytes_AS_STRING(hashes)
    cdef Py_ssize_t i
    for i in range(cells.cells):
        to[i] = fnv(cells.data + cells.ends[i], cells.ends[i + 1] - cells.ends[i])
    return hashes
