# BlipMQ's messages: `pure_blipmq.py` says what each function does, `flatbuffer.py` what is checked and how frames are laid out.

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize

cdef extern from * nogil:
    """
    static inline uint16_t le16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return v; }
    static inline uint32_t le32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
    static inline uint64_t le64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }
    static inline void put_le16(uint8_t *p, uint16_t v) { memcpy(p, &v, 2); }
    static inline void put_le32(uint8_t *p, uint32_t v) { memcpy(p, &v, 4); }
    static inline void put_le64(uint8_t *p, uint64_t v) { memcpy(p, &v, 8); }

    /* A table of a FlatBuffer: where it is, and what its vtable says. */
    typedef struct { int64_t at, vtable; uint32_t vtable_size, size; } FlatTable;

    static inline int flat_table(const uint8_t *b, int64_t n, int64_t at, FlatTable *table) {
        if (at < 4 || at + 4 > n) return 0;
        int64_t vtable = at - (int32_t)le32(b + at);
        if (vtable < 0 || vtable + 4 > n) return 0;
        table->at = at;
        table->vtable = vtable;
        table->vtable_size = le16(b + vtable);
        table->size = le16(b + vtable + 2);
        return table->vtable_size >= 4 && !(table->vtable_size & 1) && vtable + table->vtable_size <= n
            && table->size >= 4 && at + table->size <= n;
    }

    /* Where a field is, counted from the first byte: 0 when it is left out, -1 when it lies outside its table. */
    static inline int64_t flat_field(const uint8_t *b, const FlatTable *table, uint32_t slot, uint32_t width) {
        if (4 + 2 * slot + 2 > table->vtable_size) return 0;
        uint32_t place = le16(b + table->vtable + 4 + 2 * slot);
        if (place == 0) return 0;
        return place < 4 || place + width > table->size ? -1 : table->at + place;
    }

    static inline int64_t flat_follow(const uint8_t *b, int64_t n, int64_t field) {
        uint32_t distance = le32(b + field);
        return distance < 4 || field + distance + 4 > n ? -1 : field + distance;
    }

    static inline const uint8_t *flat_octets(const uint8_t *b, int64_t n, int64_t field, uint32_t *size) {
        int64_t at = flat_follow(b, n, field);
        if (at < 0) return 0;
        *size = le32(b + at);
        return at + 4 + (int64_t)*size > n ? 0 : b + at + 4;
    }

    typedef struct {
        const uint8_t *topic, *payload, *id;
        uint32_t topic_size, payload_size, id_size;
        uint64_t ttl_ms, sequence;
        uint8_t qos;
    } PlainPublish;

    static int is_ascii(const uint8_t *p, uint32_t n) {
        uint64_t word;
        for (; n >= 8; n -= 8, p += 8) { memcpy(&word, p, 8); if (word & 0x8080808080808080ULL) return 0; }
        for (; n; n--, p++) if (*p & 0x80) return 0;
        return 1;
    }

    /* Reads a Publish without metadata; 0 for a frame that is something else, special or damaged. */
    static int plain_publish(const uint8_t *b, int64_t n, PlainPublish *found) {
        FlatTable envelope, body;
        int64_t kind, message, sequence, timestamp, metadata, topic, payload, qos, ttl, id, at;
        if (!flat_table(b, n, le32(b), &envelope)) return 0;
        kind = flat_field(b, &envelope, 0, 1);
        message = flat_field(b, &envelope, 1, 4);
        sequence = flat_field(b, &envelope, 2, 8);
        timestamp = flat_field(b, &envelope, 3, 8);
        metadata = flat_field(b, &envelope, 4, 4);
        if (kind <= 0 || message <= 0 || sequence < 0 || timestamp < 0 || metadata != 0 || b[kind] != 3) return 0;
        at = flat_follow(b, n, message);
        if (at < 0 || !flat_table(b, n, at, &body)) return 0;
        topic = flat_field(b, &body, 0, 4);
        payload = flat_field(b, &body, 1, 4);
        qos = flat_field(b, &body, 2, 1);
        ttl = flat_field(b, &body, 3, 8);
        id = flat_field(b, &body, 4, 4);
        if (topic <= 0 || payload <= 0 || qos < 0 || ttl < 0 || id < 0) return 0;
        found->topic = flat_octets(b, n, topic, &found->topic_size);
        found->payload = flat_octets(b, n, payload, &found->payload_size);
        if (!found->topic || !found->payload) return 0;
        found->id = b;
        found->id_size = 0;
        if (id && !(found->id = flat_octets(b, n, id, &found->id_size))) return 0;
        found->qos = qos ? b[qos] : 0;
        if (found->qos > 1 || (found->qos && !found->id_size) || found->id_size > 255 || !is_ascii(found->id, found->id_size)) return 0;
        found->ttl_ms = ttl ? le64(b + ttl) : 0;
        found->sequence = sequence ? le64(b + sequence) : 0;
        return 1;
    }

    static const uint8_t message_head[88] = {
        0, 0, 0, 0, 16, 0, 0, 0, 12, 0, 28, 0, 24, 0, 4, 0, 8, 0, 16, 0, 12, 0, 0, 0, 36, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 14, 0, 28, 0, 4, 0, 16, 0, 0, 0, 8, 0, 24, 0, 14, 0, 0, 0, 24, 0, 0, 0,
    };
    static const uint8_t ack_head[68] = {
        0, 0, 0, 0, 16, 0, 0, 0, 12, 0, 28, 0, 24, 0, 4, 0, 8, 0, 16, 0, 12, 0, 0, 0, 32, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 8, 0, 12, 0, 4, 0, 8, 0, 0, 0, 10, 0, 0, 0, 8, 0, 0, 0,
    };

    /* How long a string is with its length, its zero byte and the padding. */
    static inline int64_t flat_string_size(uint32_t size) { return 4 + (((int64_t)size + 4) & ~(int64_t)3); }

    static inline uint8_t *blip_put_string(uint8_t *p, const uint8_t *text, uint32_t size) {
        int64_t whole = flat_string_size(size);
        put_le32(p + whole - 4, 0);
        put_le32(p, size);
        memcpy(p + 4, text, size);
        return p + whole;
    }

    static void put_ack(uint8_t *p, const uint8_t *id, uint32_t id_size, uint64_t sequence, uint64_t timestamp) {
        memcpy(p, ack_head, 68);
        put_le32(p, (uint32_t)(64 + flat_string_size(id_size)));
        put_le64(p + 28, sequence);
        put_le64(p + 36, timestamp);
        blip_put_string(p + 68, id, id_size);
    }

    /* `topic` is a whole string. */
    static void put_message(uint8_t *p, const uint8_t *topic, int64_t topic_size, const uint8_t *id, uint32_t id_size,
                            const uint8_t *payload, uint32_t payload_size, uint64_t sequence, uint64_t timestamp, uint8_t qos) {
        int64_t at = 84 + topic_size;
        memcpy(p, message_head, 88);
        put_le64(p + 28, sequence);
        put_le64(p + 36, timestamp);
        put_le64(p + 68, timestamp);
        p[84] = qos;
        memcpy(p + 88, topic, topic_size);
        if (id_size) {
            put_le16(p + 54, 20);
            put_le32(p + 80, (uint32_t)(at - 76));
            blip_put_string(p + 4 + at, id, id_size);
            at += flat_string_size(id_size);
        }
        put_le32(p + 76, (uint32_t)(at - 72));
        put_le32(p + 4 + at, payload_size);
        memcpy(p + 8 + at, payload, payload_size);
        put_le32(p, (uint32_t)(at + 4 + payload_size));
    }

    static inline uint32_t put_decimal(uint8_t *p, uint64_t value) {
        uint8_t digits[20];
        uint32_t n = 0, i;
        do { digits[n++] = '0' + value % 10; value /= 10; } while (value);
        for (i = 0; i < n; i++) p[i] = digits[n - 1 - i];
        return n;
    }

    /* QoS of a record with these attributes, and its id in `id` (room for 255 bytes); -1 when a Message needs more than these. */
    static int blip_identity(const uint8_t *block, int64_t size, uint64_t sequence, uint8_t *id, uint32_t *id_size) {
        static const char hex[] = "0123456789abcdef";
        int64_t at = 0;
        int qos = 1, ours = 0, i;
        *id_size = 0;
        while (at < size) {
            if (size - at < 6) return -1;
            uint16_t tag = le16(block + at);
            int64_t length = le32(block + at + 2);
            const uint8_t *data = block + at + 6;
            at += 6;
            if (length > size - at) return -1;
            at += length;
            if (tag == 64) {
                if (length < 1 || length > 256 || !is_ascii(data + 1, (uint32_t)length - 1)) return -1;
                qos = data[0] ? 1 : 0;
                *id_size = (uint32_t)length - 1;
                memcpy(id, data + 1, *id_size);
                ours = 1;
            } else if (tag == 80) {
                if (ours) continue;
                if (length < 16) return -1;
                for (i = 0; i < 16; i++) { id[2 * i] = hex[data[i] >> 4]; id[2 * i + 1] = hex[data[i] & 15]; }
                *id_size = 32;
            } else if (tag == 1) {
                int64_t name = length >= 2 ? le16(data) : length;
                if (name > length - 2 || (name >= 2 && data[2] == 'x' && data[3] == '-')) return -1;
            } else if ((tag >= 16 && tag <= 20) || tag == 65 || tag == 66) return -1;
        }
        if (!*id_size && qos) *id_size = put_decimal(id, sequence);
        return qos;
    }
    """
    ctypedef struct PlainPublish:
        const uint8_t* topic
        const uint8_t* payload
        const uint8_t* id
        uint32_t topic_size, payload_size, id_size
        uint64_t ttl_ms, sequence
        uint8_t qos
    uint32_t le32(const uint8_t* p)
    void put_le16(uint8_t* p, uint16_t v)
    void put_le32(uint8_t* p, uint32_t v)
    bint plain_publish(const uint8_t* b, int64_t n, PlainPublish* found)
    int64_t flat_string_size(uint32_t size)
    uint8_t* blip_put_string(uint8_t* p, const uint8_t* text, uint32_t size)
    void put_ack(uint8_t* p, const uint8_t* id, uint32_t id_size, uint64_t sequence, uint64_t timestamp)
    void put_message(uint8_t* p, const uint8_t* topic, int64_t topic_size, const uint8_t* id, uint32_t id_size,
                     const uint8_t* payload, uint32_t payload_size, uint64_t sequence, uint64_t timestamp, uint8_t qos)
    int blip_identity(const uint8_t* block, int64_t size, uint64_t sequence, uint8_t* id, uint32_t* id_size)

cdef enum:
    BLIP_TAG = 64
    BLIP_ATTRS_HEAD_BYTES = 11

cdef uint32_t BLIP_FRAME_BYTES_MIN = limits.BLIPMQ_FRAME_BYTES_MIN
cdef uint64_t BLIP_FRAME_SPARE_BYTES = limits.BLIPMQ_FRAME_SPARE_BYTES
cdef uint32_t BLIP_LEVELS_MAX = limits.BLIPMQ_LEVELS_MAX
cdef uint64_t BLIP_TTL_MS_MAX = limits.TTL_MS_MAX


cdef bint blip_may_publish(const uint8_t* topic, uint32_t size) noexcept nogil:
    cdef uint32_t i, slashes = 0
    if size and topic[0] == c"$":
        return False
    for i in range(size):
        if topic[i] == c"+" or topic[i] == c"#":
            return False
        slashes += topic[i] == c"/"
    return slashes < BLIP_LEVELS_MAX


def parse_publish(buffer, Py_ssize_t start, Py_ssize_t stop, RouteTable routes not None, uint64_t lane, uint64_t payload_max,
                  int64_t steady_ms, uint64_t reply_time, list dirty not None, ByteBuffer out not None):
    cdef Py_buffer view
    cdef const uint8_t* b
    cdef const uint8_t* last_name = NULL
    cdef Py_ssize_t position = start, frame_end, attrs_size, attrs_bytes, row_bytes, ack_bytes
    cdef uint32_t size, last_size = 0
    cdef uint64_t frame_max = payload_max + BLIP_FRAME_SPARE_BYTES
    cdef int count = 0, acks = 0, status = IN_NEED_MORE
    cdef Route route = None
    cdef Accumulator accumulator = None
    cdef PlainPublish publish
    cdef void* found
    cdef uint8_t* row
    cdef uint8_t* block
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        b = <const uint8_t*>view.buf
        if stop > view.len:
            stop = view.len
        while stop - position >= 4:
            size = le32(b + position)
            if size < BLIP_FRAME_BYTES_MIN or size > frame_max:
                status = IN_OTHER_FRAME
                break
            frame_end = position + 4 + <Py_ssize_t>size
            if frame_end > stop:
                status = IN_NEED_MORE
                break
            status = IN_OTHER_FRAME
            if not plain_publish(b + position + 4, size, &publish) or publish.payload_size > payload_max:
                break
            if route is None or publish.topic_size != last_size or memcmp(last_name, publish.topic, last_size) != 0:
                if not blip_may_publish(publish.topic, publish.topic_size):
                    break
                found = routes.find(publish.topic, publish.topic_size)
                if found == NULL:
                    break
                route = <Route>found
                last_name = publish.topic
                last_size = publish.topic_size
                accumulator = <Accumulator>route.accumulators[<Py_ssize_t>(lane % <uint64_t>len(route.accumulators))]
            if not accumulator.writable:
                break
            attrs_size = 0 if accumulator.attrs is None else PyByteArray_GET_SIZE(accumulator.attrs)
            attrs_bytes = BLIP_ATTRS_HEAD_BYTES + <Py_ssize_t>publish.id_size
            row_bytes = 16 + <Py_ssize_t>publish.payload_size
            if accumulator.count and (accumulator.rows_size + attrs_size + row_bytes + attrs_bytes > <Py_ssize_t>FLUSH_BYTES_TARGET
                                      or accumulator.count >= BATCH_RECORDS_MAX):
                status = IN_FULL
                break
            accumulator.room(row_bytes)
            accumulator.extras()
            if accumulator.attrs is None:
                accumulator.attrs = bytearray()
            PyByteArray_Resize(accumulator.attrs, attrs_size + attrs_bytes)
            if publish.qos:
                ack_bytes = 68 + flat_string_size(publish.id_size)
                put_ack(out.reserve(ack_bytes), publish.id, publish.id_size, publish.sequence, reply_time)
                out.size += ack_bytes
                acks += 1
            if not accumulator.dirty:
                accumulator.dirty = True
                dirty.append(accumulator)
            if route.level > out.level:
                out.level = route.level
            accumulator.expiry[accumulator.count] = 0
            if 0 < publish.ttl_ms < <uint64_t>1 << 53:
                accumulator.expiry[accumulator.count] = steady_ms + <int64_t>min(publish.ttl_ms, BLIP_TTL_MS_MAX)
                accumulator.has_expiry = True
            accumulator.attrs_at[accumulator.count] = <uint32_t>attrs_size
            accumulator.has_attrs = True
            block = <uint8_t*>PyByteArray_AS_STRING(accumulator.attrs) + attrs_size
            put_le32(block, <uint32_t>attrs_bytes - 4)
            put_le16(block + 4, BLIP_TAG)
            put_le32(block + 6, 1 + publish.id_size)
            block[10] = publish.qos
            memcpy(block + BLIP_ATTRS_HEAD_BYTES, publish.id, publish.id_size)
            row = accumulator.slab.rows + accumulator.rows_size
            put_be32(row, 0)
            put_be32(row + 4, publish.payload_size)
            memcpy(row + 8, publish.payload, publish.payload_size)
            put_be64(row + 8 + publish.payload_size, accumulator.next_offset)
            accumulator.note(0, publish.payload_size)
            count += 1
            position = frame_end
            status = IN_NEED_MORE
        out.frames += acks
        return position, count, status
    finally:
        PyBuffer_Release(&view)


cdef inline uint64_t blip_ticks(int64_t timestamp_ms, uint64_t ticks_per_s) noexcept nogil:
    if timestamp_ms < 0:
        return 0
    if ticks_per_s <= 1000:
        return <uint64_t>timestamp_ms // (1000 // ticks_per_s)
    return <uint64_t>timestamp_ms * (ticks_per_s // 1000)


def encode_messages(batches, uint64_t from_offset, uint64_t to_offset, bytes topic not None, uint64_t sequence_base, int qos_max,
                    uint64_t ticks_per_s, bytes wanted, ByteBuffer out not None, list ids):
    cdef Py_buffer view
    cdef const uint8_t* b
    cdef const uint8_t* row
    cdef const uint8_t* block
    cdef const uint8_t* mask = NULL
    cdef const BatchHead* head
    cdef Py_ssize_t position, column, left, stamps, attrs_column, room, frame_bytes, topic_size
    cdef uint32_t index, first, last, key_size, value_size, place, block_size, id_size = 0
    cdef uint64_t next_offset = from_offset, offset, sequence, mask_size = 0, ticks = 0
    cdef int64_t stamp
    cdef int status = OUT_COLLECTED, qos
    cdef Py_ssize_t frames = 0
    cdef uint8_t id_room[256]
    cdef bytes text = topic
    cdef bytes encoded
    cdef const uint8_t* topic_string
    if not ticks_per_s or ticks_per_s > 1000000000:
        raise BraidError("INVALID_ARGUMENT", reason=f"{ticks_per_s} ticks a second")
    encoded = PyBytes_FromStringAndSize(NULL, flat_string_size(<uint32_t>PyBytes_GET_SIZE(text)))
    topic_string = <const uint8_t*>PyBytes_AS_STRING(encoded)
    blip_put_string(<uint8_t*>topic_string, <const uint8_t*>PyBytes_AS_STRING(text), <uint32_t>PyBytes_GET_SIZE(text))
    topic_size = PyBytes_GET_SIZE(encoded)
    if wanted is not None:
        mask = <const uint8_t*>PyBytes_AS_STRING(wanted)
        mask_size = <uint64_t>PyBytes_GET_SIZE(wanted)
    for piece in batches:
        if next_offset >= to_offset or status != OUT_COLLECTED:
            break
        PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE)
        try:
            b = <const uint8_t*>view.buf
            position = 0
            while position < view.len and next_offset < to_offset and status == OUT_COLLECTED:
                head = <const BatchHead*>(b + position)
                if shape_fault(head, view.len - position) != NULL:
                    status = OUT_DAMAGED
                    break
                if head.base_offset >= to_offset:
                    break
                if head.base_offset + head.count <= next_offset:
                    position += head.length
                    continue
                if head.flags & FLAGS_OPAQUE:
                    status = OUT_DAMAGED
                    break
                if head.flags & FLAG_CONTROL:
                    next_offset = min(head.base_offset + head.count, to_offset)
                    position += head.length
                    continue
                column = padded(4 * <Py_ssize_t>head.count)
                first = <uint32_t>(next_offset - head.base_offset) if next_offset > head.base_offset else 0
                last = head.count if to_offset - head.base_offset > head.count else <uint32_t>(to_offset - head.base_offset)
                stamps = position + HEADER_BYTES + 3 * column if head.flags & FLAG_TIMESTAMPS else 0
                attrs_column = position + head.rows_at - column if head.flags & FLAG_ATTRS else 0
                room = <Py_ssize_t>head.length - head.attrs_at
                place = le32(b + position + HEADER_BYTES + 4 * <Py_ssize_t>first)
                left = <Py_ssize_t>head.attrs_at - head.rows_at - place
                row = b + position + head.rows_at + place
                ticks = blip_ticks(head.base_timestamp, ticks_per_s)
                for index in range(first, last):
                    offset = next_offset = head.base_offset + index
                    if left < 16:
                        status = OUT_DAMAGED
                        break
                    key_size = be32(row)
                    if key_size > left - 16:
                        status = OUT_DAMAGED
                        break
                    value_size = be32(row + 4 + key_size)
                    if value_size > left - 16 - <Py_ssize_t>key_size:
                        status = OUT_DAMAGED
                        break
                    if mask == NULL or (offset - from_offset < mask_size and mask[offset - from_offset]):
                        block = b
                        block_size = 0
                        if attrs_column:
                            place = le32(b + attrs_column + 4 * <Py_ssize_t>index)
                            if place != NO_ATTRS:
                                if <Py_ssize_t>place + 4 > room:
                                    status = OUT_DAMAGED
                                    break
                                block = b + position + head.attrs_at + place
                                block_size = le32(block)
                                if <Py_ssize_t>place + 4 + <Py_ssize_t>block_size > room:
                                    status = OUT_DAMAGED
                                    break
                                block += 4
                        sequence = sequence_base + offset
                        qos = blip_identity(block, block_size, sequence, id_room, &id_size)
                        if qos < 0:
                            status = OUT_SPECIAL
                            break
                        if qos > qos_max:
                            qos = qos_max
                        if stamps:
                            memcpy(&stamp, b + stamps + 8 * <Py_ssize_t>index, 8)
                            ticks = blip_ticks(stamp, ticks_per_s)
                        frame_bytes = 92 + topic_size + <Py_ssize_t>value_size
                        if id_size:
                            frame_bytes += flat_string_size(id_size)
                        put_message(out.reserve(frame_bytes), topic_string, topic_size, id_room, id_size, row + 8 + key_size,
                                    value_size, sequence, ticks, <uint8_t>qos)
                        out.size += frame_bytes
                        frames += 1
                        if qos and ids is not None:
                            ids.append((offset, PyBytes_FromStringAndSize(<char*>id_room, id_size), frame_bytes))
                    row += 16 + <Py_ssize_t>key_size + <Py_ssize_t>value_size
                    left -= 16 + <Py_ssize_t>key_size + <Py_ssize_t>value_size
                    next_offset = offset + 1
                position += head.length
        finally:
            PyBuffer_Release(&view)
    if status == OUT_COLLECTED and next_offset < to_offset:
        next_offset = to_offset
    out.frames += <int>frames
    return frames, next_offset, status
