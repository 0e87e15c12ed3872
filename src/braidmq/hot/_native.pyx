# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# long file: one compilation unit keeps the helpers inlined; the twin `pure.py` states each function's meaning.
"""Compiled twin of `braidmq.hot.pure`: the few loops that touch every message.

`pure.py` is the description of what each function does; this file does the same, faster, and the same tests run on both.
Every length read from a buffer is checked against the buffer before it is used: input may come from a stranger or from a
damaged disk.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    Py_buffer,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.hot import layout

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <string.h>
    #if defined(__x86_64__)
    #include <nmmintrin.h>
    #endif

    /* CRC-32C. A software table for any machine; the SSE 4.2 instruction where the processor has it. Three independent
       streams hide the instruction's latency; `advance` tables glue their results: running the register over zeros is
       linear, so the tables are made by running it, with no polynomial arithmetic in sight. */
    static uint32_t crc_table[8][256];
    static uint32_t crc_skip_long[4][256];
    static uint32_t crc_skip_short[4][256];
    static int crc_has_instruction = 0;
    #define CRC_LONG 4096
    #define CRC_SHORT 256

    static uint32_t crc_software(uint32_t crc, const uint8_t *p, size_t n) {
        while (n >= 8) {
            uint64_t v;
            memcpy(&v, p, 8);
            v ^= crc;
            crc = crc_table[7][v & 255] ^ crc_table[6][(v >> 8) & 255] ^ crc_table[5][(v >> 16) & 255]
                ^ crc_table[4][(v >> 24) & 255] ^ crc_table[3][(v >> 32) & 255] ^ crc_table[2][(v >> 40) & 255]
                ^ crc_table[1][(v >> 48) & 255] ^ crc_table[0][v >> 56];
            p += 8; n -= 8;
        }
        while (n--) crc = crc_table[0][(crc ^ *p++) & 255] ^ (crc >> 8);
        return crc;
    }

    #if defined(__x86_64__)
    __attribute__((target("sse4.2")))
    static uint32_t crc_run_zeros(uint32_t crc, size_t n) {
        uint64_t c = crc;
        for (; n >= 8; n -= 8) c = _mm_crc32_u64(c, 0);
        return (uint32_t)c;
    }

    static void crc_make_skip(uint32_t skip[4][256], size_t n) {
        uint32_t bit[32];
        for (int i = 0; i < 32; i++) bit[i] = crc_run_zeros((uint32_t)1 << i, n);
        for (int b = 0; b < 4; b++)
            for (int v = 0; v < 256; v++) {
                uint32_t x = 0;
                for (int i = 0; i < 8; i++) if (v >> i & 1) x ^= bit[8 * b + i];
                skip[b][v] = x;
            }
    }

    static inline uint32_t crc_skip(uint32_t skip[4][256], uint32_t c) {
        return skip[0][c & 255] ^ skip[1][c >> 8 & 255] ^ skip[2][c >> 16 & 255] ^ skip[3][c >> 24];
    }

    __attribute__((target("sse4.2")))
    static uint32_t crc_three(uint32_t crc, const uint8_t *p, size_t part, uint32_t skip[4][256]) {
        uint64_t a = crc, b = 0, c = 0, x, y, z;
        for (size_t i = 0; i < part; i += 8) {
            memcpy(&x, p + i, 8); memcpy(&y, p + part + i, 8); memcpy(&z, p + 2 * part + i, 8);
            a = _mm_crc32_u64(a, x); b = _mm_crc32_u64(b, y); c = _mm_crc32_u64(c, z);
        }
        b ^= crc_skip(skip, (uint32_t)a);
        return (uint32_t)c ^ crc_skip(skip, (uint32_t)b);
    }

    __attribute__((target("sse4.2")))
    static uint32_t crc_instruction(uint32_t crc, const uint8_t *p, size_t n) {
        while (n >= 3 * CRC_LONG) { crc = crc_three(crc, p, CRC_LONG, crc_skip_long); p += 3 * CRC_LONG; n -= 3 * CRC_LONG; }
        while (n >= 3 * CRC_SHORT) { crc = crc_three(crc, p, CRC_SHORT, crc_skip_short); p += 3 * CRC_SHORT; n -= 3 * CRC_SHORT; }
        uint64_t c = crc, v;
        for (; n >= 8; n -= 8, p += 8) { memcpy(&v, p, 8); c = _mm_crc32_u64(c, v); }
        crc = (uint32_t)c;
        while (n--) crc = _mm_crc32_u8(crc, *p++);
        return crc;
    }
    #endif

    static void crc_prepare(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = c & 1 ? (c >> 1) ^ 0x82F63B78u : c >> 1;
            crc_table[0][i] = c;
        }
        for (int t = 1; t < 8; t++)
            for (int i = 0; i < 256; i++)
                crc_table[t][i] = crc_table[0][crc_table[t - 1][i] & 255] ^ (crc_table[t - 1][i] >> 8);
    #if defined(__x86_64__)
        __builtin_cpu_init();
        if (__builtin_cpu_supports("sse4.2")) {
            crc_make_skip(crc_skip_long, CRC_LONG);
            crc_make_skip(crc_skip_short, CRC_SHORT);
            crc_has_instruction = 1;
        }
    #endif
    }

    static uint32_t crc_extend(uint32_t crc, const uint8_t *p, size_t n) {
        crc = ~crc;
    #if defined(__x86_64__)
        if (crc_has_instruction) return ~crc_instruction(crc, p, n);
    #endif
        return ~crc_software(crc, p, n);
    }

    static uint32_t crc_extend_software(uint32_t crc, const uint8_t *p, size_t n) { return ~crc_software(~crc, p, n); }

    static inline uint32_t be32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
    static inline uint64_t be64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
    static inline void put_be32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
    static inline void put_be64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }

    /* The header of `braidmq.hot.layout`, field by field. */
    #pragma pack(push, 1)
    typedef struct {
        uint32_t magic, length, checksum;
        uint8_t version, checksum_kind;
        uint16_t flags;
        uint64_t base_offset;
        uint32_t count, leader_epoch;
        int64_t base_timestamp, max_timestamp, producer_id;
        int32_t base_sequence;
        int16_t producer_epoch;
        uint8_t compression, reserved;
        uint32_t key_id, rows_at, attrs_at, plain_length;
    } BatchHead;
    #pragma pack(pop)
    """
    void crc_prepare()
    uint32_t crc_extend(uint32_t crc, const uint8_t* p, size_t n)
    uint32_t crc_extend_software(uint32_t crc, const uint8_t* p, size_t n)
    uint32_t be32(const uint8_t* p)
    uint64_t be64(const uint8_t* p)
    void put_be32(uint8_t* p, uint32_t v)
    void put_be64(uint8_t* p, uint64_t v)
    ctypedef struct BatchHead:
        uint32_t magic, length, checksum
        uint8_t version, checksum_kind
        uint16_t flags
        uint64_t base_offset
        uint32_t count, leader_epoch
        int64_t base_timestamp, max_timestamp, producer_id
        int32_t base_sequence
        int16_t producer_epoch
        uint8_t compression, reserved
        uint32_t key_id, rows_at, attrs_at, plain_length

crc_prepare()

cdef enum:
    MAGIC = 0x31445242
    HEADER_BYTES = 80
    CHECKSUM_FROM = 12
    FLAG_EXPIRY = 0x0004
    FLAG_ATTRS = 0x0008
    FLAG_TIMESTAMPS = 0x0010
    FLAGS_KNOWN = 0x007F
    FLAG_CONTROL = 0x0040
    FLAGS_OPAQUE = 0x0003
    FLAGS_SPECIAL = 0x0043
    FLAGS_NOT_AS_THEY_LIE = 0x0047
    SMALL_SLICE = 4096
    POOL_SLABS = 4096
    POOL_BYTES = 67108864
    SLAB_BYTES = 8192
    SLAB_RECORDS = 64
    SLAB_BYTES_KEPT = 4194304
    IN_NEED_MORE = 0
    IN_OTHER_FRAME = 1
    IN_FULL = 2
    OUT_COLLECTED = 0
    OUT_SPECIAL = 1
    OUT_DAMAGED = 2
    OUT_LIMITED = 3
    OUT_EXPIRED = 4

cdef uint32_t NO_ATTRS = 0xFFFFFFFF
cdef uint32_t BATCH_RECORDS_MAX = limits.BATCH_RECORDS_MAX
cdef uint64_t BATCH_BYTES_MAX = limits.BATCH_BYTES_MAX
cdef Py_ssize_t RECORD_BYTES_MAX = limits.RECORD_BYTES_MAX
cdef uint64_t OFFSET_MAX = layout.OFFSET_MAX
cdef uint64_t FLUSH_BYTES_TARGET = limits.FLUSH_BYTES_TARGET


cdef inline Py_ssize_t padded(Py_ssize_t size) noexcept nogil:
    return (size + 7) & ~<Py_ssize_t>7


def crc32c(data, uint32_t value=0):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return crc_extend(value, <uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


def crc32c_software(data, uint32_t value=0):
    """The table form of `crc32c`, for processors without the instruction; exposed so that tests compare the two."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return crc_extend_software(value, <uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef inline uint32_t fnv(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    cdef uint32_t h = 0x811C9DC5
    cdef Py_ssize_t i
    for i in range(n):
        h = (h ^ p[i]) * <uint32_t>0x01000193
    return h


def fnv1a(bytes key not None):
    return fnv(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))


cdef class ByteBuffer:
    """Bytes that grow at the end; what a session's answers are written into."""

    cdef uint8_t* data
    cdef Py_ssize_t size, capacity
    cdef public int level
    cdef public int frames

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return self.size

    cdef uint8_t* reserve(self, Py_ssize_t more) except NULL:
        cdef Py_ssize_t wanted
        cdef uint8_t* grown
        if self.size + more > self.capacity or self.data == NULL:
            wanted = max(4096, 2 * (self.size + more))
            grown = <uint8_t*>realloc(self.data, wanted)
            if grown == NULL:
                raise MemoryError()
            self.data = grown
            self.capacity = wanted
        return self.data + self.size

    def take(self):
        cdef bytes taken = PyBytes_FromStringAndSize(<char*>self.data, self.size)
        self.size = 0
        self.level = 0
        self.frames = 0
        if self.capacity > 262144:
            free(self.data)
            self.data = NULL
            self.capacity = 0
        return taken


# --- rows of a coming batch --------------------------------------------------------------------------------------------

cdef struct Slab:
    uint8_t* rows
    Py_ssize_t rows_capacity
    uint32_t* columns
    Py_ssize_t columns_capacity

# Slabs are lent to accumulators between the first row and the write, so a thousand quiet partitions hold none and busy
# ones share a few that stay warm in the cache. They begin small and grow, and the pool is bounded by its bytes.
cdef Slab pool[POOL_SLABS]
cdef int pool_size = 0
cdef Py_ssize_t pool_bytes = 0


cdef class Accumulator:
    """Rows of one partition on their way into a batch."""

    cdef Slab slab
    cdef Py_ssize_t rows_size
    cdef readonly uint32_t count
    cdef public uint64_t next_offset
    cdef public bint dirty
    cdef public bint writable
    cdef readonly object owner
    cdef int64_t* expiry
    cdef uint32_t* attrs_at
    cdef Py_ssize_t extras_capacity
    cdef bint extra, has_expiry, has_attrs
    cdef bytearray attrs
    cdef int exports

    def __init__(self, owner, uint64_t next_offset):
        self.owner = owner
        self.next_offset = next_offset
        self.writable = True
        self.attrs = None

    def __dealloc__(self):
        free(self.slab.rows)
        free(self.slab.columns)
        free(self.expiry)
        free(self.attrs_at)

    @property
    def rows_bytes(self):
        return self.rows_size

    cdef int borrow(self) except -1:
        global pool_size, pool_bytes
        if pool_size > 0:
            pool_size -= 1
            self.slab = pool[pool_size]
            pool_bytes -= self.slab.rows_capacity
        else:
            self.slab.rows = <uint8_t*>malloc(SLAB_BYTES)
            self.slab.rows_capacity = SLAB_BYTES
            self.slab.columns = <uint32_t*>malloc(3 * 4 * SLAB_RECORDS)
            self.slab.columns_capacity = SLAB_RECORDS
            if self.slab.rows == NULL or self.slab.columns == NULL:
                raise MemoryError()
        return 0

    cdef void give_back(self) noexcept:
        global pool_size, pool_bytes
        cdef Py_ssize_t capacity = self.slab.rows_capacity
        if self.slab.rows == NULL:
            return
        if pool_size < POOL_SLABS and capacity <= SLAB_BYTES_KEPT and pool_bytes + capacity <= POOL_BYTES:
            pool[pool_size] = self.slab
            pool_size += 1
            pool_bytes += capacity
        else:
            free(self.slab.rows)
            free(self.slab.columns)
        self.slab.rows = NULL
        self.slab.columns = NULL
        self.slab.rows_capacity = 0
        self.slab.columns_capacity = 0

    cdef int room(self, Py_ssize_t row_bytes) except -1:
        cdef Py_ssize_t wanted, i
        cdef uint8_t* rows
        cdef uint32_t* columns
        cdef Py_ssize_t old
        if self.slab.rows == NULL:
            self.borrow()
        if self.rows_size + row_bytes > self.slab.rows_capacity:
            wanted = 2 * (self.rows_size + row_bytes)
            rows = <uint8_t*>realloc(self.slab.rows, wanted)
            if rows == NULL:
                raise MemoryError()
            self.slab.rows = rows
            self.slab.rows_capacity = wanted
        if self.count == self.slab.columns_capacity:
            old = self.slab.columns_capacity
            wanted = 2 * old
            columns = <uint32_t*>malloc(3 * 4 * wanted)
            if columns == NULL:
                raise MemoryError()
            for i in range(3):
                memcpy(columns + i * wanted, self.slab.columns + i * old, 4 * old)
            free(self.slab.columns)
            self.slab.columns = columns
            self.slab.columns_capacity = wanted
        return 0

    cdef inline void note(self, uint32_t key_size, uint32_t value_size) noexcept:
        cdef Py_ssize_t capacity = self.slab.columns_capacity
        self.slab.columns[self.count] = <uint32_t>self.rows_size
        self.slab.columns[capacity + self.count] = key_size
        self.slab.columns[2 * capacity + self.count] = value_size
        self.rows_size += 16 + key_size + value_size
        self.count += 1
        self.next_offset += 1

    cdef int extras(self) except -1:
        """Make room for one more expiry and attrs position, filled with `none` for the records before."""
        cdef Py_ssize_t wanted, i
        cdef int64_t* expiry
        cdef uint32_t* attrs_at
        if self.count >= self.extras_capacity:
            wanted = max(<Py_ssize_t>64, 2 * <Py_ssize_t>(self.count + 1))
            expiry = <int64_t*>realloc(self.expiry, 8 * wanted)
            if expiry == NULL:
                raise MemoryError()
            self.expiry = expiry
            attrs_at = <uint32_t*>realloc(self.attrs_at, 4 * wanted)
            if attrs_at == NULL:
                raise MemoryError()
            self.attrs_at = attrs_at
            self.extras_capacity = wanted
        if not self.extra:
            for i in range(self.count):
                self.expiry[i] = 0
                self.attrs_at[i] = NO_ATTRS
            self.extra = True
        return 0

    def append(self, bytes key, value, int64_t expiry=0, bytes attrs=None):
        cdef Py_buffer view
        cdef uint8_t* row
        cdef Py_ssize_t key_size = 0 if key is None else PyBytes_GET_SIZE(key)
        cdef Py_ssize_t i
        cdef uint64_t offset = self.next_offset
        PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
        try:
            self.room(16 + key_size + view.len)
            if expiry != 0 or attrs or self.extra:
                self.extras()
                self.expiry[self.count] = expiry
                self.attrs_at[self.count] = NO_ATTRS
                if expiry != 0:
                    self.has_expiry = True
                if attrs:
                    if self.attrs is None:
                        self.attrs = bytearray()
                    self.attrs_at[self.count] = <uint32_t>len(self.attrs)
                    self.attrs += attrs
                    self.has_attrs = True
            row = self.slab.rows + self.rows_size
            put_be32(row, <uint32_t>key_size)
            if key_size:
                memcpy(row + 4, PyBytes_AS_STRING(key), key_size)
            put_be32(row + 4 + key_size, <uint32_t>view.len)
            memcpy(row + 8 + key_size, view.buf, view.len)
            put_be64(row + 8 + key_size + view.len, offset)
            self.note(<uint32_t>key_size, <uint32_t>view.len)
        finally:
            PyBuffer_Release(&view)
        return offset

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.slab.rows, self.rows_size, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.exports -= 1

    def seal(self, int64_t timestamp, uint32_t leader_epoch):
        cdef uint32_t n = self.count
        cdef uint16_t flags = 0
        cdef Py_ssize_t column = padded(4 * <Py_ssize_t>n), head_size = HEADER_BYTES + 3 * column
        cdef Py_ssize_t attrs_size = 0, total, pad, capacity = self.slab.columns_capacity
        cdef bytes head, tail
        cdef uint8_t* h
        cdef uint8_t* p
        cdef BatchHead* head_fields
        cdef uint32_t crc
        cdef int i
        # A column appears only when some record needs it.
        if self.has_expiry:
            flags |= FLAG_EXPIRY
            head_size += 8 * <Py_ssize_t>n
        if self.has_attrs:
            flags |= FLAG_ATTRS
            head_size += column
            attrs_size = len(self.attrs)
        total = padded(head_size + self.rows_size + attrs_size)
        pad = total - (head_size + self.rows_size + attrs_size)
        if total > <Py_ssize_t>BATCH_BYTES_MAX:
            raise BraidError("INVALID_BATCH", reason=f"{total} bytes are over the limit of {BATCH_BYTES_MAX}")
        head = PyBytes_FromStringAndSize(NULL, head_size)
        h = <uint8_t*>PyBytes_AS_STRING(head)
        p = h + HEADER_BYTES
        for i in range(3):
            memcpy(p, self.slab.columns + i * capacity, 4 * n)
            memset(p + 4 * n, 0, column - 4 * n)
            p += column
        if self.has_expiry:
            memcpy(p, self.expiry, 8 * n)
            p += 8 * n
        if self.has_attrs:
            memcpy(p, self.attrs_at, 4 * n)
            memset(p + 4 * n, 0, column - 4 * n)
        tail = (bytes(self.attrs) if attrs_size else b"") + b"\0" * pad
        head_fields = <BatchHead*>h
        head_fields.magic = MAGIC
        head_fields.length = <uint32_t>total
        head_fields.version = 1
        head_fields.checksum_kind = 1
        head_fields.flags = flags
        head_fields.base_offset = self.next_offset - n
        head_fields.count = n
        head_fields.leader_epoch = leader_epoch
        head_fields.base_timestamp = timestamp
        head_fields.max_timestamp = timestamp
        head_fields.producer_id = -1
        head_fields.base_sequence = -1
        head_fields.producer_epoch = -1
        head_fields.compression = 0
        head_fields.reserved = 0
        head_fields.key_id = 0
        head_fields.rows_at = <uint32_t>head_size
        head_fields.attrs_at = <uint32_t>(head_size + self.rows_size)
        head_fields.plain_length = <uint32_t>total
        crc = crc_extend(0, h + CHECKSUM_FROM, head_size - CHECKSUM_FROM)
        crc = crc_extend(crc, self.slab.rows, self.rows_size)
        head_fields.checksum = crc_extend(crc, <const uint8_t*>PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail))
        if tail:
            return [head, memoryview(self), tail], total
        return [head, memoryview(self)], total

    def take(self, int64_t timestamp, uint32_t leader_epoch):
        buffers, _ = self.seal(timestamp, leader_epoch)
        cdef bytes sealed = b"".join(buffers)
        del buffers
        self.reset()
        return sealed

    def reset(self):
        if self.exports:
            raise BufferError("rows are still being written")
        self.count = 0
        self.rows_size = 0
        self.has_expiry = False
        self.has_attrs = False
        self.extra = False
        self.attrs = None
        if self.extras_capacity > 4096:
            free(self.expiry)
            free(self.attrs_at)
            self.expiry = NULL
            self.attrs_at = NULL
            self.extras_capacity = 0
        self.give_back()


# --- routing and parsing PRODUCE ----------------------------------------------------------------------------------------

cdef class Route:
    """A topic as the parser sees it."""

    cdef readonly bytes topic
    cdef readonly list accumulators
    cdef public int level
    cdef public uint64_t counter

    def __init__(self, bytes topic not None, list accumulators not None, int level):
        self.topic = topic
        self.accumulators = accumulators
        self.level = level


cdef struct Slot:
    uint64_t hash
    void* route


cdef inline uint64_t name_hash(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    cdef uint64_t h = <uint64_t>n * <uint64_t>0x9E3779B97F4A7C15, v
    while n >= 8:
        memcpy(&v, p, 8)
        h = (h ^ v) * <uint64_t>0xFF51AFD7ED558CCD
        h ^= h >> 32
        p += 8
        n -= 8
    if n:
        v = 0
        memcpy(&v, p, n)
        h = (h ^ v) * <uint64_t>0xFF51AFD7ED558CCD
        h ^= h >> 32
    return h


cdef class RouteTable:
    """Topic name to route, looked up by the bytes in a frame without making an object of them."""

    cdef Slot* slots
    cdef Py_ssize_t capacity
    cdef dict routes

    def __cinit__(self):
        self.routes = {}

    def __dealloc__(self):
        free(self.slots)

    def __len__(self):
        return len(self.routes)

    def get(self, bytes topic not None):
        return self.routes.get(topic)

    def add(self, Route route not None):
        self.routes[route.topic] = route
        self.rebuild()

    def remove(self, bytes topic not None):
        if self.routes.pop(topic, None) is not None:
            self.rebuild()

    def clear(self):
        self.routes.clear()
        self.rebuild()

    cdef int rebuild(self) except -1:
        cdef Py_ssize_t capacity = 16, i
        cdef Route route
        cdef uint64_t h
        cdef Slot* slots
        while capacity < 2 * len(self.routes) + 2:
            capacity *= 2
        slots = <Slot*>calloc(capacity, sizeof(Slot))
        if slots == NULL:
            raise MemoryError()
        for route in self.routes.values():
            h = name_hash(<const uint8_t*>PyBytes_AS_STRING(route.topic), PyBytes_GET_SIZE(route.topic))
            i = <Py_ssize_t>(h & <uint64_t>(capacity - 1))
            while slots[i].route != NULL:
                i = (i + 1) & (capacity - 1)
            slots[i].hash = h
            slots[i].route = <void*>route
        free(self.slots)
        self.slots = slots
        self.capacity = capacity
        return 0

    cdef void* find(self, const uint8_t* name, Py_ssize_t size) noexcept:
        cdef uint64_t h
        cdef Py_ssize_t i
        cdef Route route
        if self.slots == NULL:
            return NULL
        h = name_hash(name, size)
        i = <Py_ssize_t>(h & <uint64_t>(self.capacity - 1))
        while self.slots[i].route != NULL:
            if self.slots[i].hash == h:
                route = <Route>self.slots[i].route
                if PyBytes_GET_SIZE(route.topic) == size and memcmp(PyBytes_AS_STRING(route.topic), name, size) == 0:
                    return self.slots[i].route
            i = (i + 1) & (self.capacity - 1)
        return NULL


NEED_MORE = IN_NEED_MORE
OTHER_FRAME = IN_OTHER_FRAME
FULL = IN_FULL


def parse_produce(buffer, Py_ssize_t start, Py_ssize_t stop, RouteTable routes not None, int64_t now_ms,
                  list dirty not None, ByteBuffer out not None):
    cdef Py_buffer view
    cdef const uint8_t* b
    cdef const uint8_t* last_name = NULL
    cdef Py_ssize_t position = start, frame_end, name_size, key_at, value_at, row_end, last_size = -1, partitions = 0, row_bytes
    cdef uint32_t length, key_size, value_size
    cdef int32_t partition
    cdef int count = 0, status = 0
    cdef bint in_turn
    cdef Route route = None
    cdef Accumulator accumulator
    cdef void* found
    cdef uint8_t* row
    cdef uint8_t* reply
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        b = <const uint8_t*>view.buf
        if stop > view.len:
            stop = view.len
        while stop - position >= 8:
            if be32(b + position) != <uint32_t>0xAF010101:
                status = IN_OTHER_FRAME
                break
            length = be32(b + position + 4)
            frame_end = position + 8 + <Py_ssize_t>length
            if frame_end > stop:
                # Too long a frame must be refused now, not waited for; the general path does that.
                status = IN_OTHER_FRAME if length > <uint32_t>0x02000000 else IN_NEED_MORE
                break
            status = IN_OTHER_FRAME
            if length < 14:
                break
            name_size = (<Py_ssize_t>b[position + 8] << 8) | b[position + 9]
            if <Py_ssize_t>length < name_size + 14:
                break
            key_at = position + 10 + name_size
            key_size = be32(b + key_at)
            if <uint64_t>key_size + 12 > <uint64_t>(frame_end - key_at):
                break
            value_at = key_at + 4 + <Py_ssize_t>key_size
            value_size = be32(b + value_at)
            if <uint64_t>value_size + 8 != <uint64_t>(frame_end - value_at):
                break
            row_end = frame_end - 4
            if row_end - key_at > RECORD_BYTES_MAX + 8:
                break
            partition = <int32_t>be32(b + row_end)
            if route is None or name_size != last_size or memcmp(last_name, b + position + 10, name_size) != 0:
                found = routes.find(b + position + 10, name_size)
                if found == NULL:
                    break
                route = <Route>found
                last_name = b + position + 10
                last_size = name_size
                partitions = len(route.accumulators)
                if route.level > out.level:
                    out.level = route.level
            in_turn = False
            if partition < 0:
                if partitions == 1:
                    partition = 0
                elif key_size:
                    partition = <int32_t>(fnv(b + key_at + 4, key_size) % <uint32_t>partitions)
                else:
                    partition = <int32_t>(route.counter % <uint64_t>partitions)
                    in_turn = True
            elif partition >= partitions:
                break
            accumulator = <Accumulator>route.accumulators[partition]
            if not accumulator.writable:
                break
            row_bytes = row_end - key_at
            if accumulator.count and (accumulator.rows_size + row_bytes > <Py_ssize_t>FLUSH_BYTES_TARGET
                                      or accumulator.count >= BATCH_RECORDS_MAX):
                status = IN_FULL
                break
            accumulator.room(row_bytes + 8)
            reply = out.reserve(38 + name_size)
            if in_turn:
                route.counter += 1
            if not accumulator.dirty:
                accumulator.dirty = True
                dirty.append(accumulator)
            if accumulator.extra:
                accumulator.extras()
                accumulator.expiry[accumulator.count] = 0
                accumulator.attrs_at[accumulator.count] = NO_ATTRS
            row = accumulator.slab.rows + accumulator.rows_size
            memcpy(row, b + key_at, row_bytes)
            put_be64(row + row_bytes, accumulator.next_offset)
            put_be32(reply, <uint32_t>0xAF010101)
            put_be32(reply + 4, <uint32_t>(30 + name_size))
            memcpy(reply + 8, b + position + 8, name_size + 2)
            reply += 10 + name_size
            put_be32(reply, <uint32_t>partition)
            put_be64(reply + 4, accumulator.next_offset)
            put_be64(reply + 12, <uint64_t>now_ms)
            put_be32(reply + 20, key_size if key_size else <uint32_t>0xFFFFFFFF)
            put_be32(reply + 24, value_size)
            out.size += 38 + name_size
            accumulator.note(key_size, value_size)
            count += 1
            position = frame_end
            status = IN_NEED_MORE
        out.frames += count
        return position, count, status
    finally:
        PyBuffer_Release(&view)


# --- walking stored batches ---------------------------------------------------------------------------------------------

cdef Py_ssize_t columns_bytes(uint32_t count, uint16_t flags) noexcept nogil:
    cdef Py_ssize_t column = padded(4 * <Py_ssize_t>count), size = 3 * column
    if flags & FLAG_TIMESTAMPS:
        size += 8 * <Py_ssize_t>count
    if flags & FLAG_EXPIRY:
        size += 8 * <Py_ssize_t>count
    if flags & FLAG_ATTRS:
        size += column
    return size


cdef const char* shape_fault(const BatchHead* head, Py_ssize_t available) noexcept nogil:
    """Why this header cannot be believed, or NULL. Everything later code relies on for bounds is checked here."""
    if available < HEADER_BYTES:
        return "header cut short"
    if head.magic != MAGIC:
        return "no batch here"
    if head.length < HEADER_BYTES or head.length > BATCH_BYTES_MAX or head.length & 7:
        return "impossible length"
    if head.length > available:
        return "batch cut short"
    if head.version != 1:
        return "unknown version"
    if head.checksum_kind != 1:
        return "unknown checksum kind"
    if head.flags & ~FLAGS_KNOWN:
        return "unknown flags"
    if head.count == 0 or head.count > BATCH_RECORDS_MAX:
        return "impossible record count"
    if head.base_offset > <uint64_t>OFFSET_MAX:
        return "impossible offset"
    if head.flags & FLAG_CONTROL:
        if head.rows_at != HEADER_BYTES:
            return "columns do not fit the record count"
    elif head.rows_at != HEADER_BYTES + columns_bytes(head.count, head.flags):
        return "columns do not fit the record count"
    if head.attrs_at < head.rows_at or head.plain_length < head.attrs_at:
        return "rows do not fit the batch"
    if not head.flags & FLAGS_OPAQUE and head.plain_length != head.length:
        return "rows do not fit the batch"
    return NULL


cdef inline bint checksum_ok(const uint8_t* batch) noexcept nogil:
    cdef const BatchHead* head = <const BatchHead*>batch
    return crc_extend(0, batch + CHECKSUM_FROM, head.length - CHECKSUM_FROM) == head.checksum


def scan_batches(buffer, Py_ssize_t start, Py_ssize_t stop, int64_t next_offset, Py_ssize_t index_interval):
    cdef Py_buffer view
    cdef const uint8_t* b
    cdef const BatchHead* head
    cdef Py_ssize_t position = start, indexed = start - index_interval
    cdef const char* fault = NULL
    cdef int64_t max_timestamp = -1, first_timestamp = -1
    cdef Py_ssize_t batches = 0
    cdef uint64_t entry[3]
    index = bytearray()
    producers = []
    reason = ""
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        b = <const uint8_t*>view.buf
        if stop > view.len:
            stop = view.len
        while position < stop:
            head = <const BatchHead*>(b + position)
            fault = shape_fault(head, stop - position)
            if fault != NULL:
                reason = fault.decode()
                break
            if not checksum_ok(b + position):
                reason = "checksum mismatch"
                break
            if next_offset >= 0 and head.base_offset != <uint64_t>next_offset:
                reason = f"offset {head.base_offset} where {next_offset} comes next"
                break
            if head.max_timestamp > max_timestamp:
                max_timestamp = head.max_timestamp
            if first_timestamp < 0:
                first_timestamp = head.base_timestamp
            if position - indexed >= index_interval:
                entry[0] = head.base_offset
                entry[1] = <uint64_t>position
                entry[2] = <uint64_t>max_timestamp
                index += (<char*>entry)[:24]
                indexed = position
            if head.producer_id >= 0:
                producers.append((head.producer_id, head.producer_epoch, head.base_sequence, head.count, head.base_offset,
                                  head.max_timestamp))
            next_offset = <int64_t>(head.base_offset + head.count)
            batches += 1
            position += head.length
        return position, next_offset, reason, bytes(index), first_timestamp, max_timestamp, producers, batches
    finally:
        PyBuffer_Release(&view)


def verify_batches(buffer, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t until=PY_SSIZE_T_MAX):
    cdef Py_buffer view
    cdef const uint8_t* b
    cdef Py_ssize_t position = start
    cdef const char* fault
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        b = <const uint8_t*>view.buf
        if stop > view.len:
            stop = view.len
        while position < stop and position < until:
            fault = shape_fault(<const BatchHead*>(b + position), stop - position)
            if fault != NULL:
                return position, fault.decode()
            if not checksum_ok(b + position):
                return position, "checksum mismatch"
            position += (<const BatchHead*>(b + position)).length
        return position, ""
    finally:
        PyBuffer_Release(&view)


COLLECTED = OUT_COLLECTED
SPECIAL = OUT_SPECIAL
DAMAGED = OUT_DAMAGED
LIMITED = OUT_LIMITED
EXPIRED = OUT_EXPIRED


cdef inline Py_ssize_t row_start(const uint8_t* batch, uint32_t index) noexcept nogil:
    """Where row `index` begins, from the batch's start; `count` gives the end of the rows. -1 when the column lies."""
    cdef const BatchHead* head = <const BatchHead*>batch
    cdef uint32_t at
    if index >= head.count:
        return head.attrs_at
    memcpy(&at, batch + HEADER_BYTES + 4 * <Py_ssize_t>index, 4)
    if at > head.attrs_at - head.rows_at:
        return -1
    return head.rows_at + <Py_ssize_t>at


cdef uint32_t rows_within(const uint8_t* batch, uint32_t first, uint32_t most, Py_ssize_t bytes_max) noexcept nogil:
    """How many rows from `first` fit into `bytes_max`, by bisection over the position column."""
    cdef uint32_t low = 0, high = most, middle
    cdef Py_ssize_t start = row_start(batch, first), at
    if row_start(batch, first + most) - start <= bytes_max:
        return most
    while low < high:
        middle = (low + high + 1) // 2
        at = row_start(batch, first + middle)
        if at < 0 or at - start > bytes_max:
            high = middle - 1
        else:
            low = middle
    return low


cdef inline const uint8_t* expiry_column(const uint8_t* batch) noexcept nogil:
    cdef const BatchHead* head = <const BatchHead*>batch
    cdef Py_ssize_t at = HEADER_BYTES + 3 * padded(4 * <Py_ssize_t>head.count)
    if head.flags & FLAG_TIMESTAMPS:
        at += 8 * <Py_ssize_t>head.count
    return batch + at


cdef inline bint is_expired(const uint8_t* column, uint32_t index, int64_t now_ms) noexcept nogil:
    cdef int64_t expiry
    memcpy(&expiry, column + 8 * <Py_ssize_t>index, 8)
    return 0 < expiry <= now_ms


cdef uint32_t same_until(const uint8_t* batch, uint32_t index, bint gone, int64_t now_ms) noexcept nogil:
    """The first record at `index` or later that is not expired (`gone`), or that is (not `gone`); `count` when there is none."""
    cdef const uint8_t* column = expiry_column(batch)
    cdef uint32_t count = (<const BatchHead*>batch).count
    while index < count and is_expired(column, index, now_ms) == gone:
        index += 1
    return index


cdef int64_t asked_time(now) except? -1:
    return now()


cdef uint64_t living_run(const uint8_t* batch, uint32_t index, int64_t now_ms) noexcept nogil:
    """The first run of living records at `index` or later: its first in the upper half, the one after its last in the lower."""
    cdef uint32_t first = same_until(batch, index, True, now_ms)
    return <uint64_t>first << 32 | same_until(batch, first, False, now_ms)


def collect_rows(buffer, Py_ssize_t start, Py_ssize_t stop, uint64_t offset, uint32_t records_max, Py_ssize_t bytes_max, now=None):
    cdef Py_buffer view
    cdef const uint8_t* b
    cdef const BatchHead* head
    cdef Py_ssize_t position = start, row_from, row_to, taken = 0
    cdef uint32_t first, last, here, count = 0
    cdef uint64_t next_offset = offset
    cdef int64_t now_ms = 0
    cdef uint64_t run
    cdef bint asked = False, dated = now is not None
    cdef int status = OUT_COLLECTED
    cdef ByteBuffer small = None
    cdef uint8_t* target
    slices = []
    whole = memoryview(buffer)
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        b = <const uint8_t*>view.buf
        if stop > view.len:
            stop = view.len
        while position < stop and count < records_max:
            head = <const BatchHead*>(b + position)
            if shape_fault(head, stop - position) != NULL:
                status = OUT_DAMAGED
                break
            if head.base_offset + head.count <= next_offset:
                position += head.length
                continue
            first = <uint32_t>(next_offset - head.base_offset) if next_offset > head.base_offset else 0
            last = head.count
            if head.flags & FLAGS_NOT_AS_THEY_LIE:
                if head.flags & FLAGS_SPECIAL or not dated:
                    status = OUT_SPECIAL
                    break
                if not asked:
                    now_ms = asked_time(now)
                    asked = True
                run = living_run(b + position, first, now_ms)
                first, last = <uint32_t>(run >> 32), <uint32_t>run
                next_offset = head.base_offset + first
                if first == head.count:
                    position += head.length
                    continue
            here = min(last - first, records_max - count)
            if taken + (row_start(b + position, first + here) - row_start(b + position, first)) > bytes_max:
                here = rows_within(b + position, first, here, bytes_max - taken)
                if here == 0:
                    if count:
                        status = OUT_LIMITED
                        break
                    here = 1
            row_from = row_start(b + position, first)
            row_to = row_start(b + position, first + here)
            if row_from < 0 or row_to < row_from:
                status = OUT_DAMAGED
                break
            if row_to - row_from <= SMALL_SLICE:
                if small is None:
                    small = ByteBuffer()
                target = small.reserve(row_to - row_from)
                memcpy(target, b + position + row_from, row_to - row_from)
                small.size += row_to - row_from
            else:
                if small is not None and small.size:
                    slices.append(small.take())
                slices.append(whole[position + row_from : position + row_to])
            taken += row_to - row_from
            count += here
            next_offset = head.base_offset + first + here
            if first + here < head.count:
                if first + here == last:
                    # An expired row follows.
                    continue
                # The batch was read in part, but its checksum covers all of it.
                position += head.length
                status = OUT_LIMITED
                break
            position += head.length
        if count >= records_max:
            status = OUT_LIMITED
        if small is not None and small.size:
            slices.append(small.take())
        return slices, taken, count, next_offset, position, status
    finally:
        PyBuffer_Release(&view)


def reorder_rows(slices, Py_ssize_t size):
    """Rows as FETCH items of the `v126` dialect: the offset moves from the end of each row to its start."""
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef uint32_t key_size, value_size
    cdef Py_ssize_t body
    cdef bytes result = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(result)
    cdef uint8_t* out_end = out + size
    for part in slices:
        PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
        try:
            p = <const uint8_t*>view.buf
            end = p + view.len
            while p < end:
                key_size = be32(p) if end - p >= 16 else <uint32_t>0xFFFFFFFF
                if key_size > end - p - 16:
                    raise BraidError("INVALID_BATCH", reason="a row runs past its batch")
                value_size = be32(p + 4 + key_size)
                if value_size > end - p - 16 - <Py_ssize_t>key_size:
                    raise BraidError("INVALID_BATCH", reason="a row runs past its batch")
                body = 8 + <Py_ssize_t>key_size + <Py_ssize_t>value_size
                if out_end - out < body + 8:
                    raise BraidError("INVALID_BATCH", reason="rows are larger than announced")
                memcpy(out, p + body, 8)
                memcpy(out + 8, p, body)
                out += body + 8
                p += body + 8
        finally:
            PyBuffer_Release(&view)
    if out != out_end:
        raise BraidError("INVALID_BATCH", reason="rows are smaller than announced")
    return result


def span_batches(buffer, Py_ssize_t start, Py_ssize_t stop, uint64_t offset, Py_ssize_t bytes_max, now=None):
    cdef Py_buffer view
    cdef const uint8_t* b
    cdef const BatchHead* head
    cdef Py_ssize_t position = start, first = -1
    cdef uint64_t next_offset = offset
    cdef int status = OUT_COLLECTED
    cdef int64_t now_ms = 0
    cdef bint asked = False, dated = now is not None
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        b = <const uint8_t*>view.buf
        if stop > view.len:
            stop = view.len
        while position < stop:
            head = <const BatchHead*>(b + position)
            if shape_fault(head, stop - position) != NULL:
                status = OUT_DAMAGED
                break
            if first < 0:
                if head.base_offset + head.count > offset:
                    first = position
            if first >= 0:
                if head.flags & FLAG_EXPIRY and dated and not head.flags & FLAGS_SPECIAL:
                    if not asked:
                        now_ms = now()
                        asked = True
                    if same_until(b + position, 0, False, now_ms) < head.count:
                        status = OUT_EXPIRED
                        break
                if position > first and position + <Py_ssize_t>head.length - first > bytes_max:
                    status = OUT_LIMITED
                    break
                next_offset = head.base_offset + head.count
            position += head.length
        if first < 0:
            first = position
        return first, position, next_offset, status
    finally:
        PyBuffer_Release(&view)


# --- building and reading whole batches ---------------------------------------------------------------------------------

def encode_batch(list keys not None, list values not None, list attrs=None, int64_t producer_id=-1,
                 int producer_epoch=-1, int64_t base_sequence=-1):
    cdef Py_ssize_t n = len(values), i, rows = 0, attrs_size = 0, head_size, total, column
    cdef uint16_t flags = 0
    cdef bytes batch
    cdef uint8_t* p
    cdef uint8_t* row
    cdef uint8_t* extra
    cdef uint32_t* positions
    cdef uint32_t at, key_size
    cdef BatchHead* head
    cdef Py_buffer view
    if n == 0 or n > BATCH_RECORDS_MAX or len(keys) != n or (attrs is not None and len(attrs) != n):
        raise BraidError("INVALID_BATCH", reason="impossible record count")
    if not (-1 <= producer_id and -1 <= producer_epoch <= 0x7FFF and -1 <= base_sequence <= 0x7FFFFFFF):
        raise BraidError("INVALID_BATCH", reason="impossible producer id, epoch or sequence")
    for i in range(n):
        rows += 16 + len(values[i])
        if keys[i] is not None:
            rows += len(keys[i])
    if attrs is not None:
        for i in range(n):
            attrs_size += len(attrs[i])
        if attrs_size:
            flags = FLAG_ATTRS
    column = padded(4 * n)
    head_size = HEADER_BYTES + columns_bytes(<uint32_t>n, flags)
    total = padded(head_size + rows + attrs_size)
    if total > <Py_ssize_t>BATCH_BYTES_MAX:
        raise BraidError("INVALID_BATCH", reason=f"{total} bytes are over the limit of {BATCH_BYTES_MAX}")
    batch = PyBytes_FromStringAndSize(NULL, total)
    p = <uint8_t*>PyBytes_AS_STRING(batch)
    memset(p, 0, head_size)
    memset(p + total - 8, 0, 8)
    head = <BatchHead*>p
    row = p + head_size
    extra = row + rows
    for i in range(n):
        at = <uint32_t>(row - p - head_size)
        memcpy(p + HEADER_BYTES + 4 * i, &at, 4)
        key_size = 0
        key = keys[i]
        if key is not None and len(key):
            PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
            key_size = <uint32_t>view.len
            put_be32(row, key_size)
            memcpy(row + 4, view.buf, view.len)
            PyBuffer_Release(&view)
        else:
            put_be32(row, 0)
        memcpy(p + HEADER_BYTES + column + 4 * i, &key_size, 4)
        row += 4 + key_size
        PyObject_GetBuffer(values[i], &view, PyBUF_SIMPLE)
        at = <uint32_t>view.len
        put_be32(row, at)
        memcpy(row + 4, view.buf, view.len)
        PyBuffer_Release(&view)
        memcpy(p + HEADER_BYTES + 2 * column + 4 * i, &at, 4)
        row += 4 + at
        put_be64(row, <uint64_t>i)
        row += 8
        if flags:
            at = NO_ATTRS
            if len(attrs[i]):
                at = <uint32_t>(extra - p - head_size - rows)
                PyObject_GetBuffer(attrs[i], &view, PyBUF_SIMPLE)
                memcpy(extra, view.buf, view.len)
                extra += view.len
                PyBuffer_Release(&view)
            memcpy(p + HEADER_BYTES + 3 * column + 4 * i, &at, 4)
    memset(extra, 0, p + total - extra)
    head.magic = MAGIC
    head.length = <uint32_t>total
    head.version = 1
    head.checksum_kind = 1
    head.flags = flags
    head.count = <uint32_t>n
    head.producer_id = producer_id
    head.base_sequence = <int32_t>base_sequence
    head.producer_epoch = <int16_t>producer_epoch
    head.rows_at = <uint32_t>head_size
    head.attrs_at = <uint32_t>(head_size + rows)
    head.plain_length = <uint32_t>total
    head.checksum = crc_extend(0, p + CHECKSUM_FROM, total - CHECKSUM_FROM)
    return batch


def stamp_batch(data, uint64_t base_offset, uint32_t leader_epoch, int64_t timestamp):
    cdef Py_buffer view
    cdef uint8_t* b
    cdef BatchHead* head
    cdef uint32_t n, i, at, key_size, value_size
    cdef Py_ssize_t column, rows, expected = 0, attrs_size, position
    cdef const char* fault
    cdef uint8_t* row
    result = bytearray(data)
    PyObject_GetBuffer(result, &view, PyBUF_WRITABLE)
    try:
        b = <uint8_t*>view.buf
        head = <BatchHead*>b
        fault = shape_fault(head, view.len)
        if fault != NULL:
            raise BraidError("INVALID_BATCH", reason=fault.decode())
        if head.length != view.len:
            raise BraidError("INVALID_BATCH", reason="more than one batch")
        if head.flags & ~FLAG_ATTRS:
            raise BraidError("INVALID_BATCH", reason=f"flags {head.flags:#06x} are not for producers")
        if not checksum_ok(b):
            raise BraidError("INVALID_BATCH", reason="checksum mismatch")
        n = head.count
        column = padded(4 * <Py_ssize_t>n)
        rows = head.attrs_at - head.rows_at
        for i in range(n):
            memcpy(&at, b + HEADER_BYTES + 4 * <Py_ssize_t>i, 4)
            memcpy(&key_size, b + HEADER_BYTES + column + 4 * <Py_ssize_t>i, 4)
            memcpy(&value_size, b + HEADER_BYTES + 2 * column + 4 * <Py_ssize_t>i, 4)
            if at != expected or <uint64_t>16 + key_size + value_size > <uint64_t>(rows - expected):
                raise BraidError("INVALID_BATCH", reason=f"row {i} does not fit its columns")
            row = b + head.rows_at + at
            if be32(row) != key_size or be32(row + 4 + key_size) != value_size:
                raise BraidError("INVALID_BATCH", reason=f"row {i} does not fit its columns")
            put_be64(row + 8 + key_size + value_size, base_offset + i)
            expected += 16 + <Py_ssize_t>key_size + <Py_ssize_t>value_size
        if expected != rows:
            raise BraidError("INVALID_BATCH", reason="rows do not fit the batch")
        if head.flags & FLAG_ATTRS:
            attrs_size = head.length - head.attrs_at
            for i in range(n):
                memcpy(&at, b + HEADER_BYTES + 3 * column + 4 * <Py_ssize_t>i, 4)
                if at == NO_ATTRS:
                    continue
                if <uint64_t>at + 4 > <uint64_t>attrs_size:
                    raise BraidError("INVALID_BATCH", reason=f"attributes of record {i} lie outside the batch")
                memcpy(&key_size, b + head.attrs_at + at, 4)
                if <uint64_t>at + 4 + key_size > <uint64_t>attrs_size:
                    raise BraidError("INVALID_BATCH", reason=f"attributes of record {i} lie outside the batch")
        head.base_offset = base_offset
        head.leader_epoch = leader_epoch
        head.base_timestamp = timestamp
        head.max_timestamp = timestamp
        head.checksum = crc_extend(0, b + CHECKSUM_FROM, head.length - CHECKSUM_FROM)
    finally:
        PyBuffer_Release(&view)
    return result


def decode_records(data, uint64_t from_offset, Py_ssize_t limit, make):
    cdef Py_buffer view
    cdef const uint8_t* b
    cdef const BatchHead* head
    cdef const uint8_t* row
    cdef Py_ssize_t position = 0, stop, column, left, attrs_size, stamps
    cdef uint32_t i, key_size, value_size, at, block
    cdef uint64_t next_offset = from_offset
    cdef int64_t timestamp
    cdef const char* fault
    cdef bytes empty = b""
    records = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        b = <const uint8_t*>view.buf
        stop = view.len
        while position < stop:
            head = <const BatchHead*>(b + position)
            fault = shape_fault(head, stop - position)
            if fault != NULL:
                raise BraidError("INVALID_BATCH", reason=fault.decode())
            if not checksum_ok(b + position):
                raise BraidError("INVALID_BATCH", reason="checksum mismatch")
            if head.flags & FLAGS_OPAQUE:
                raise BraidError("INVALID_BATCH", reason="compressed or encrypted batches are for the broker")
            if head.flags & FLAG_CONTROL:
                if head.base_offset + head.count > next_offset:
                    next_offset = head.base_offset + head.count
                position += head.length
                continue
            column = padded(4 * <Py_ssize_t>head.count)
            stamps = HEADER_BYTES + 3 * column
            left = head.attrs_at - head.rows_at
            row = b + position + head.rows_at
            attrs_size = head.length - head.attrs_at
            timestamp_object = head.base_timestamp
            for i in range(head.count):
                if left < 16:
                    raise BraidError("INVALID_BATCH", reason="a row runs past its batch")
                key_size = be32(row)
                if key_size > left - 16:
                    raise BraidError("INVALID_BATCH", reason="a row runs past its batch")
                value_size = be32(row + 4 + key_size)
                if value_size > left - 16 - <Py_ssize_t>key_size:
                    raise BraidError("INVALID_BATCH", reason="a row runs past its batch")
                if head.base_offset + i >= from_offset:
                    if len(records) >= limit:
                        return records, next_offset
                    if head.flags & FLAG_TIMESTAMPS:
                        memcpy(&timestamp, b + position + stamps + 8 * <Py_ssize_t>i, 8)
                        timestamp_object = timestamp
                    attrs = empty
                    if head.flags & FLAG_ATTRS:
                        memcpy(&at, b + position + head.rows_at - column + 4 * <Py_ssize_t>i, 4)
                        if at != NO_ATTRS:
                            if <uint64_t>at + 4 > <uint64_t>attrs_size:
                                raise BraidError("INVALID_BATCH", reason="attributes lie outside the batch")
                            memcpy(&block, b + position + head.attrs_at + at, 4)
                            if <uint64_t>at + 4 + block > <uint64_t>attrs_size:
                                raise BraidError("INVALID_BATCH", reason="attributes lie outside the batch")
                            attrs = PyBytes_FromStringAndSize(<char*>b + position + head.attrs_at + at, 4 + block)
                    records.append(make(
                        head.base_offset + i, timestamp_object,
                        PyBytes_FromStringAndSize(<char*>row + 4, key_size) if key_size else None,
                        PyBytes_FromStringAndSize(<char*>row + 8 + key_size, value_size), attrs))
                    next_offset = head.base_offset + i + 1
                row += 16 + <Py_ssize_t>key_size + <Py_ssize_t>value_size
                left -= 16 + <Py_ssize_t>key_size + <Py_ssize_t>value_size
            if head.base_offset + head.count > next_offset:
                next_offset = head.base_offset + head.count
            position += head.length
        return records, next_offset
    finally:
        PyBuffer_Release(&view)


# --- columns ------------------------------------------------------------------------------------------------------------

include "_native_columns.pxi"
include "_native_avro.pxi"
include "_native_json.pxi"


# --- fq -----------------------------------------------------------------------------------------------------------------

include "_native_fq.pxi"


# --- BlipMQ -------------------------------------------------------------------------------------------------------------

include "_native_blipmq.pxi"
