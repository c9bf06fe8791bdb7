// Decoding of consecutive records window by window, from a file or from bytes in memory, in one call.
//
// Example: a window of 64 bytes, and three records of 40 bytes. 64 bytes are read; record 0 is decoded. Its 24 bytes that
// begin record 1 move to the front, 40 bytes follow them, and record 1 is decoded. Of record 2, 24 bytes are in view, and
// so on. A record that is larger than the window, the end of the source and a failed read are left to the caller, which
// finds the window as it was.
//
// A caller of `Feed` that skips record 1 by its header, which is in view, continues at byte 80: nothing between is read.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "files.hpp"
#include "framing.hpp"

namespace dtf {

// Bytes in view, and the byte of the source that follows them.
struct View {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::uint64_t position = 0;
};

// Bytes of a source.
struct Reach {
    std::uint64_t stop = 0;  // where reading will probably stop; more is read only if a record needs it
    std::uint64_t size = 0;  // where the source ends
    std::uint64_t most = 0;  // that are read in one call, about
    std::size_t first = 0;   // that are read at once until a record is decoded
    std::size_t block = 0;   // that are read at once in the end: the size doubles
};

// A window over a source; `Read` reads bytes to memory: `read(out, size, position)`, with the results of read_at.
template <class Read>
class Windows {
public:
    Windows(std::uint8_t* buffer, std::size_t capacity, View& view, const Reach& reach, Read read)
        : buffer_(buffer), capacity_(capacity), view_(view), reach_(reach), read_(read),
          end_(view.position + std::min(reach.most, UINT64_MAX - view.position)), block_(reach.first) {}

    // Pass the records in view, and those after them, to `feed`: at most `limit` of them, of bytes before `last`, which
    // counts from the first byte in view. `feed(data, size, limit, at)` gets the bytes from byte `at` on. It may skip a
    // record that ends beyond the view: the bytes between are not read, and the position may lie past the source then.
    template <class Feed>
    Walk each(std::uint64_t limit, std::uint64_t last, Feed feed) {
        Walk total;
        for (;;) {
            const std::uint64_t left = last - total.consumed;
            const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(view_.end - view_.begin, left));
            const Walk walk = feed(buffer_ + view_.begin, size, limit - total.records, total.consumed);
            pass(walk.consumed);
            total.records += walk.records;
            total.consumed += walk.consumed;
            total.stop = walk.stop;
            total.need = walk.need;
            if (walk.records > 0) block_ = std::min(reach_.block, 2 * block_);
            if (walk.stop != Stop::more || walk.need > last - total.consumed || !fill(walk.need)) return total;
        }
    }

private:
    // Move forward.
    void pass(std::uint64_t consumed) {
        const std::uint64_t have = view_.end - view_.begin;
        view_.begin += static_cast<std::size_t>(std::min(consumed, have));
        if (consumed > have) view_.position += consumed - have;
    }

    // Read until `need` bytes are in view; false if they don't fit, the source lacks them, or enough was read.
    bool fill(std::uint64_t need) {
        std::size_t have = view_.end - view_.begin;
        if (have >= need) return true;
        if (need > capacity_ || view_.position >= end_) return false;
        if (view_.begin > 0) {
            std::memmove(buffer_, buffer_ + view_.begin, have);
            view_.begin = 0;
            view_.end = have;
        }
        while (have < need) {
            if (view_.position >= reach_.size) return false;
            const std::uint64_t missing = need - have;
            const std::uint64_t planned = reach_.stop > view_.position ? reach_.stop - view_.position : block_;
            std::uint64_t size = std::max<std::uint64_t>(std::min<std::uint64_t>(planned, block_), missing);
            size = std::min({size, std::uint64_t{capacity_ - have}, reach_.size - view_.position});
            const std::ptrdiff_t got = read_(buffer_ + have, static_cast<std::size_t>(size), view_.position);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) return false;
            have += static_cast<std::size_t>(got);
            view_.end = have;
            view_.position += static_cast<std::uint64_t>(got);
        }
        return true;
    }

    std::uint8_t* buffer_;
    std::size_t capacity_;
    View& view_;
    Reach reach_;
    Read read_;
    std::uint64_t end_;
    std::size_t block_;
};

}  // namespace dtf
