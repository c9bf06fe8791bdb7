// Records in a block of bytes: u64 length, u32 masked CRC of it, payload, u32 masked CRC of the payload.
#pragma once

#include "crc32c.hpp"
#include "cursor.hpp"

namespace dtf {

enum class Stop : int {
    more = 0,     // the block ends within a record
    limit = 1,    // as many records as were asked for
    framing = 2,  // a CRC does not hold
    feature = 3,  // a record holds but is not what the columns take
};

struct Walk {
    std::uint64_t records = 0;
    std::uint64_t consumed = 0;  // bytes of whole records; where some are skipped it may pass the end of the block
    std::uint64_t need = 0;      // with `more`: bytes from there on that the next step needs
    Stop stop = Stop::more;
};

constexpr std::size_t header_size = 12;
constexpr std::size_t footer_size = 4;
// Lengths past this are never real; it keeps sums of a length and the framing from wrapping.
constexpr std::uint64_t absurd_length = std::uint64_t{1} << 62;

// No file is larger, so most of what is no header is told from one by its length.
constexpr std::uint64_t most_room = std::uint64_t{1} << 40;

class Framing {
public:
    explicit Framing(bool check) : crc_(crc::best()), check_(check) {}

    // A record that is wholly in the block: its payload, or why there is none.
    bool next(Cursor& block, Cursor& payload, Walk& walk) const {
        Cursor ahead = block;
        std::uint64_t length;
        if (!header(ahead, length, walk)) return false;
        if (length > absurd_length || length + footer_size > ahead.left()) {
            walk.need = length > absurd_length ? UINT64_MAX : header_size + length + footer_size;
            walk.stop = Stop::more;
            return false;
        }
        const std::size_t size = static_cast<std::size_t>(length);
        const std::uint8_t* data = ahead.take(size);
        const std::uint8_t* footer = ahead.take(footer_size);
        if (check_ && crc::mask(crc_(data, size)) != load<std::uint32_t>(footer)) {
            walk.stop = Stop::framing;
            return false;
        }
        payload = Cursor(data, size);
        block = ahead;
        return true;
    }

    // Headers alone, at most `limit` of them.
    Walk scan(const std::uint8_t* data, std::size_t size, std::uint64_t limit) const {
        Walk walk;
        if (skip(data, size, limit, walk)) walk.stop = Stop::limit;
        return walk;
    }

    // Goes on by headers alone until the walk has passed `records` of them; or says why not.
    bool skip(const std::uint8_t* data, std::size_t size, std::uint64_t records, Walk& walk) const {
        while (walk.records < records) {
            if (walk.consumed >= size) {
                walk.need = header_size;
                walk.stop = Stop::more;
                return false;
            }
            Cursor ahead(data + walk.consumed, size - static_cast<std::size_t>(walk.consumed));
            std::uint64_t length;
            if (!header(ahead, length, walk)) return false;
            if (length > absurd_length) {  // the shard can't hold it: whoever has its size says so
                walk.need = UINT64_MAX;
                walk.stop = Stop::more;
                return false;
            }
            walk.consumed += header_size + length + footer_size;
            ++walk.records;
        }
        return true;
    }

    // Whole records whose CRCs both hold, as far as they lie in the block.
    Walk check(const std::uint8_t* data, std::size_t size) const {
        Walk walk;
        Cursor block(data, size), payload(data, 0);
        while (next(block, payload, walk)) ++walk.records;
        walk.consumed = size - block.left();
        return walk;
    }

    // How far it is to the next header that holds, of a record that ends within `room` bytes; -1 if there is none.
    std::int64_t find(const std::uint8_t* data, std::size_t size, std::uint64_t room) const {
        constexpr std::size_t least = header_size + footer_size;
        // The three highest bytes of a length are zero: one that is not rules out every header it would be in.
        const std::size_t steps[] = {3, 2, 1};
        std::size_t at = 0;
        while (at + header_size <= size && at + least <= room) {
            const std::uint64_t length = load<std::uint64_t>(data + at);
            if (room <= most_room && length >> 40 != 0) {
                at += steps[length >> 56 != 0 ? 0 : length >> 48 != 0 ? 1 : 2];
                continue;
            }
            if (length <= room - at - least &&
                crc::mask(crc_(data + at, 8)) == load<std::uint32_t>(data + at + 8)) {
                return static_cast<std::int64_t>(at);
            }
            ++at;
        }
        return -1;
    }

private:
    bool header(Cursor& ahead, std::uint64_t& length, Walk& walk) const {
        const std::uint8_t* bytes = ahead.take(header_size);
        if (bytes == nullptr) {
            walk.need = header_size;
            walk.stop = Stop::more;
            return false;
        }
        if (check_ && crc::mask(crc_(bytes, 8)) != load<std::uint32_t>(bytes + 8)) {
            walk.stop = Stop::framing;
            return false;
        }
        length = load<std::uint64_t>(bytes);
        return true;
    }

    crc::Function crc_;
    bool check_;
};

}  // namespace dtf
