// Record framing. A stream is a sequence of records without gaps, little-endian:
//
//     uint64 length                 header, 12 bytes
//     uint32 masked CRC32C of the 8 bytes of length
//     byte   payload[length]
//     uint32 masked CRC32C of the payload
//
// Specification: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
#pragma once

#include <stdexcept>

#include "crc32c.hpp"
#include "cursor.hpp"

namespace dtf {

enum class Stop : int {
    more = 0,     // the block ends within a record
    limit = 1,    // the requested number of records was read
    framing = 2,  // a CRC does not match
    feature = 3,  // the CRCs of a record match, but the columns do not accept its content
};

struct Walk {
    std::uint64_t records = 0;
    std::uint64_t consumed = 0;  // bytes of whole records; past the end of the block if a record was skipped
    std::uint64_t need = 0;      // with `more`: bytes from there on that the next call needs
    Stop stop = Stop::more;
};

constexpr std::size_t header_size = 12;
constexpr std::size_t footer_size = 4;
// No record is longer. Sums of a length and the size of the framing cannot overflow.
constexpr std::uint64_t absurd_length = std::uint64_t{1} << 62;

// No file is larger, so the length alone rules out most false headers.
constexpr std::uint64_t largest_file = std::uint64_t{1} << 40;

// Bytes of a stream up to the end of each record that a walk passes, one after the other, while all headers are intact.
class Ends {
public:
    Ends() = default;
    Ends(std::int64_t* found, std::size_t most) : next_(found), left_(most) {}

    bool wanted() const { return left_ > 0; }

    // Set the byte of the stream where the next walk begins.
    void begin(std::uint64_t offset) { offset_ = offset; }

    // Add a record that ends `consumed` bytes after the begin.
    void add(std::uint64_t consumed) {
        if (left_ == 0) return;
        *next_++ = static_cast<std::int64_t>(offset_ + consumed);
        --left_;
    }

    // Keep no more: a header is damaged.
    void stop() { left_ = 0; }

private:
    std::int64_t* next_ = nullptr;
    std::size_t left_ = 0;
    std::uint64_t offset_ = 0;
};

class Framing {
public:
    explicit Framing(bool check) : crc_(crc::best()), check_(check) {}

    // Read a record that lies within the block, or set in `walk` why not.
    bool next(Cursor& block, Cursor& payload, Walk& walk, Ends* ends = nullptr) const {
        Cursor ahead = block;
        std::uint64_t length;
        if (!header(ahead, length, walk, ends)) return false;
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

    // Walk headers only, at most `limit` of them.
    Walk scan(const std::uint8_t* data, std::size_t size, std::uint64_t limit) const {
        Walk walk;
        if (skip(data, size, limit, walk)) walk.stop = Stop::limit;
        return walk;
    }

    // Walk headers until `walk` has passed `records` of them, or set why not.
    bool skip(const std::uint8_t* data, std::size_t size, std::uint64_t records, Walk& walk,
              Ends* ends = nullptr) const {
        while (walk.records < records) {
            if (walk.consumed >= size) {
                walk.need = header_size;
                walk.stop = Stop::more;
                return false;
            }
            Cursor ahead(data + walk.consumed, size - static_cast<std::size_t>(walk.consumed));
            std::uint64_t length;
            if (!header(ahead, length, walk, ends)) return false;
            if (length > absurd_length) {  // longer than any shard: the caller, which knows the size, reports it
                walk.need = UINT64_MAX;
                walk.stop = Stop::more;
                return false;
            }
            walk.consumed += header_size + length + footer_size;
            ++walk.records;
            if (ends != nullptr) ends->add(walk.consumed);
        }
        return true;
    }

    // Walk headers, at most `count` of them, and write the bytes up to the end of each record.
    Walk ends(const std::uint8_t* data, std::size_t size, std::int64_t* found, std::size_t count) const {
        Walk walk;
        walk.stop = Stop::limit;
        for (std::size_t i = 0; i < count && skip(data, size, i + 1, walk); ++i) {
            found[i] = static_cast<std::int64_t>(walk.consumed);
        }
        return walk;
    }

    // Pass at most `limit` records of the block to `take`, until it refuses one.
    template <class Take>
    DTF_INLINE Walk each(const std::uint8_t* data, std::size_t size, std::uint64_t limit, Take take) const {
        Walk walk;
        Cursor block(data, size);
        walk.stop = Stop::limit;
        while (walk.records < limit && one(block, walk, take)) walk.consumed = size - block.left();
        return walk;
    }

    // Pass the records of the block with the `count` ascending numbers `wanted` to `take`; the block starts with record
    // `first`. Other records are skipped by their headers; the last of them may extend beyond the block. The ends of all
    // of them are added to `ends`, if it is given.
    template <class Take>
    DTF_INLINE Walk each_selected(const std::uint8_t* data, std::size_t size, std::uint64_t first,
                                  const std::int64_t* wanted, std::size_t count, Ends* ends, Take take) const {
        Walk walk;
        for (std::size_t i = 0; i < count; ++i) {
            const auto number = static_cast<std::uint64_t>(wanted[i]);
            if (wanted[i] < 0 || number < first + walk.records) {
                throw std::invalid_argument("records are picked as they follow each other");
            }
            if (!skip(data, size, number - first, walk, ends)) return walk;
            // the skipped record may end at or beyond the end of the block
            const std::size_t begin = walk.consumed < size ? static_cast<std::size_t>(walk.consumed) : size;
            Cursor block(data + begin, size - begin);
            if (!one(block, walk, take, ends)) return walk;
            walk.consumed = size - block.left();
            if (ends != nullptr) ends->add(walk.consumed);
        }
        walk.stop = Stop::limit;
        return walk;
    }

    // Walk whole records of the block whose CRCs match.
    Walk check(const std::uint8_t* data, std::size_t size) const {
        Walk walk;
        Cursor block(data, size), payload(data, 0);
        while (next(block, payload, walk)) ++walk.records;
        walk.consumed = size - block.left();
        return walk;
    }

    // Distance to the next valid header of a record that ends within `available` bytes, or -1.
    std::int64_t find(const std::uint8_t* data, std::size_t size, std::uint64_t available) const {
        constexpr std::size_t least = header_size + footer_size;
        // The three highest bytes of a length are zero. A nonzero one rules out every header that would contain it
        // there.
        const std::size_t steps[] = {3, 2, 1};
        std::size_t at = 0;
        while (at + header_size <= size && at + least <= available) {
            const std::uint64_t length = load<std::uint64_t>(data + at);
            if (available <= largest_file && length >> 40 != 0) {
                at += steps[length >> 56 != 0 ? 0 : length >> 48 != 0 ? 1 : 2];
                continue;
            }
            if (length <= available - at - least &&
                crc::mask(crc_(data + at, 8)) == load<std::uint32_t>(data + at + 8)) {
                return static_cast<std::int64_t>(at);
            }
            ++at;
        }
        return -1;
    }

private:
    template <class Take>
    DTF_INLINE bool one(Cursor& block, Walk& walk, Take& take, Ends* ends = nullptr) const {
        Cursor payload(block.here(), 0);
        if (!next(block, payload, walk, ends)) return false;
        if (!take(payload)) {
            walk.stop = Stop::feature;
            return false;
        }
        ++walk.records;
        return true;
    }

    bool header(Cursor& ahead, std::uint64_t& length, Walk& walk, Ends* ends = nullptr) const {
        const std::uint8_t* bytes = ahead.take(header_size);
        if (bytes == nullptr) {
            walk.need = header_size;
            walk.stop = Stop::more;
            return false;
        }
        const bool keeps = ends != nullptr && ends->wanted();
        if ((check_ || keeps) && crc::mask(crc_(bytes, 8)) != load<std::uint32_t>(bytes + 8)) {
            if (check_) {
                walk.stop = Stop::framing;
                return false;
            }
            ends->stop();
        }
        length = load<std::uint64_t>(bytes);
        return true;
    }

    crc::Function crc_;
    bool check_;
};

}  // namespace dtf
