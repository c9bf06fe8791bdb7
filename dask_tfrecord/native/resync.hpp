// Search for intact records in a damaged stream: one pass that finds every record whose two CRCs match, at any offset.
// framing.hpp describes the wire layout of a record.
//
// A header has a CRC of its own, so a record is found by its header, and it is intact if its payload CRC matches. A
// payload may contain whole records. Those within an intact record are ignored, but those within a lost record cannot
// be distinguished from real ones by their bytes. `Resync` therefore reports how stretches of records are connected:
//
// - after an intact record the next record begins;
// - a record with a damaged payload ends where its header indicates, if an intact header or the end of the stream
// follows;
// - an intact payload ends before its CRC, which a header or the end of the stream follows. This locates a payload
// whose header is lost, if it begins within `reach` bytes of the end of the preceding record.
//
// Each byte is read once: one CRC runs along the stream, and since a CRC is linear, that of any stretch follows from
// its values at both ends. Time grows with the number of bytes only, memory with the number of stretches. A header
// waits for the end of its record; at most `most_waiting` headers wait at once.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "framing.hpp"

namespace dtf {

// Effect of zero bytes on a CRC state, forwards and backwards: they multiply a polynomial by a power of x.
class Zeros {
public:
    Zeros() {
        powers_[0] = std::uint32_t{1} << 30;  // x itself, bits reversed
        for (std::size_t i = 1; i < powers_.size(); ++i) powers_[i] = times(powers_[i - 1], powers_[i - 1]);
    }

    std::uint32_t forward(std::uint32_t state, std::uint64_t bytes) const {
        return times(power(bytes % order * 8 % order), state);
    }
    std::uint32_t backward(std::uint32_t state, std::uint64_t bytes) const {
        return times(power((order - bytes % order * 8 % order) % order), state);
    }

private:
    static constexpr std::uint64_t order = (std::uint64_t{1} << 31) - 1;  // x to this power is 1

    static std::uint32_t times(std::uint32_t one, std::uint32_t other) {
        std::uint32_t product = 0;
        for (std::uint32_t bit = std::uint32_t{1} << 31; bit != 0 && one != 0; bit >>= 1) {
            if ((one & bit) != 0) product ^= other;
            one &= ~bit;
            other = (other >> 1) ^ ((other & 1) != 0 ? crc::polynomial : 0);
        }
        return product;
    }

    std::uint32_t power(std::uint64_t exponent) const {
        std::uint32_t product = std::uint32_t{1} << 31;  // 1
        for (std::size_t i = 0; exponent != 0; ++i, exponent >>= 1) {
            if ((exponent & 1) != 0) product = times(powers_[i], product);
        }
        return product;
    }

    std::array<std::uint32_t, 31> powers_{};
};

// The state before a byte, given the state after it.
class Backwards {
public:
    Backwards() {
        for (std::uint32_t byte = 0; byte < 256; ++byte) byte_[crc::byte_tables[0][byte] >> 24] = byte;
    }
    std::uint32_t operator()(std::uint32_t state, std::uint8_t byte) const {
        const std::uint32_t entry = byte_[state >> 24];
        return (state ^ crc::byte_tables[0][entry]) << 8 | (entry ^ byte);
    }

private:
    std::array<std::uint32_t, 256> byte_{};
};

constexpr std::uint64_t nowhere = UINT64_MAX;

// Consecutive intact records.
struct Stretch {
    std::uint64_t start = 0;
    std::uint64_t end = 0;
    std::uint64_t records = 0;
    std::uint64_t root = nowhere;  // end of the preceding stretch, if headers or a CRC lead from there to here
    std::uint64_t lost = 0;        // number of damaged records between root and start
    bool sealed = false;           // whether the CRC of a payload right after root proves the connection
    std::uint64_t header_end = 0;    // end of the next record, if its header is intact
    std::uint64_t reach = 0;       // end of the last record with a damaged payload that headers lead to
    bool payload = false;          // whether the CRC of the whole stretch follows it: it is the content of a payload
    std::uint32_t state = 0;       // CRC state at the start
};

class Resync {
public:
    // A payload within this distance of the end of a record is found by its own CRC.
    static constexpr std::size_t reach = 64;
    static constexpr std::size_t most_waiting = 1 << 16;

    // `boundary`: a record begins at `start`. `size`: that of the whole stream, or `nowhere`.
    Resync(std::uint64_t start, std::uint64_t size, bool boundary)
        : at_(start), size_(size), advance_(crc::best_advance()) {
        if (!boundary) return;
        stretches_.emplace_back();
        stretches_.back().start = stretches_.back().end = start;
        stretches_.back().state = state_;
    }

    // Read the bytes from `position()` on and return how many are no longer needed; a few at the end may be.
    std::size_t feed(const std::uint8_t* data, std::size_t size, bool last) {
        rest_ = Cursor(data, size);
        while (step(last)) {
        }
        if (last) finish();
        return size - rest_.left();
    }

    std::uint64_t position() const { return at_; }
    std::uint64_t bytes_read() const { return bytes_read_; }  // a byte that is read twice counts twice
    std::size_t waiting() const { return waiting_.size(); }
    std::uint64_t nested() const { return nested_; }  // intact records whose payload contains records
    const std::vector<Stretch>& stretches() const { return stretches_; }
    // Like `root` and `lost` of a Stretch, for the bytes between the last stretch and the end of the stream.
    std::uint64_t tail_root() const { return tail_root_; }
    std::uint64_t tail_lost() const { return tail_lost_; }

private:
    struct Link {  // offset where a record should begin
        std::uint64_t at, root, lost;
        bool sealed = false;
    };
    struct Waiting {  // an intact header
        std::uint64_t end;  // of its payload
        std::uint64_t root, lost;
        bool sealed;
        std::uint32_t at_header, at_payload;  // CRC states
    };
    struct Broken : Link {  // offset where a header is expected, but the bytes are not one
        std::uint32_t state;
        std::uint8_t bytes[reach];
        std::size_t have;
    };

    bool step(bool last) {
        const std::uint64_t event = ends_.empty() ? nowhere : ends_.begin()->first;
        if (event == at_) {
            const std::uint8_t* footer = peek(footer_size);
            if (footer != nullptr) {
                settle(load<std::uint32_t>(footer));
                return true;
            }
            if (last) go(rest_.left());  // the stream is shorter than its size
            return false;
        }
        std::uint64_t until = event;
        for (const Link& link : links_) {
            if (link.at > at_) until = std::min(until, link.at);
        }
        const std::uint8_t* bytes = peek(header_size);
        if (bytes == nullptr) {
            if (!last || rest_.empty()) return false;
            go(std::min<std::uint64_t>(rest_.left(), until - at_));
            return true;
        }
        Link here{at_, nowhere, 0, false};
        if (due(here)) {
            if (framing_.find(bytes, header_size, largest_file) == 0) {
                open(bytes, load<std::uint64_t>(bytes), here);
            } else {
                broken(bytes, here);
            }
            go(1);
            return true;
        }
        const std::uint64_t span = std::min<std::uint64_t>(rest_.left() - header_size + 1, until - at_);
        const std::uint64_t found = find(span);
        go(found);
        if (found == span) return true;
        here.at = at_;
        sealed(here);
        bytes = peek(header_size);
        open(bytes, load<std::uint64_t>(bytes), here);
        go(1);
        return true;
    }

    // The next bytes, or null if fewer remain.
    const std::uint8_t* peek(std::uint64_t count) const { return Cursor(rest_).take(static_cast<std::size_t>(count)); }

    // Return whether a record is expected to begin here.
    bool due(Link& here) const {
        if (!stretches_.empty() && stretches_.back().end == at_) {
            here.root = at_;
            return true;
        }
        for (const Link& link : links_) {
            if (link.at != at_) continue;
            here = link;
            return true;
        }
        return false;
    }

    // Distance to the next intact header.
    std::uint64_t find(std::uint64_t span) {
        const std::size_t size = static_cast<std::size_t>(span) + header_size - 1;
        const std::int64_t found = framing_.find(peek(size), size, largest_file);
        const std::uint64_t past = found < 0 ? span : static_cast<std::uint64_t>(found);
        bytes_read_ += past;
        return past;
    }

    // Advance and update the CRC.
    void go(std::uint64_t count) {
        const std::size_t size = static_cast<std::size_t>(count);
        const std::uint8_t* from = rest_.take(size);
        for (Broken& place : broken_) {
            const std::size_t past = static_cast<std::size_t>(std::min<std::uint64_t>(at_ - place.at, reach));
            if (past != place.have) continue;  // the buffer is full
            const std::size_t part = std::min(reach - past, size);
            std::copy(from, from + part, place.bytes + past);
            place.have += part;
        }
        state_ = advance_(state_, from, size);
        for (std::size_t i = size < footer_size ? 0 : size - footer_size; i < size; ++i) {
            footer_ = footer_ >> 8 | static_cast<std::uint32_t>(from[i]) << 24;
        }
        bytes_read_ += size;
        at_ += size;
    }

    // An intact header: wait for the end of its record.
    void open(const std::uint8_t* bytes, std::uint64_t length, const Link& here) {
        const std::uint64_t end = at_ + header_size + length + footer_size;
        if (here.root != nowhere) {
            const auto before = std::find_if(stretches_.rbegin(), stretches_.rend(),
                                             [&](const Stretch& stretch) { return stretch.end == here.root; });
            if (before != stretches_.rend()) {
                if (here.root == at_) before->header_end = end;
                before->reach = end;
            }
            // the length may be wrong nevertheless
            if (end > size_) note(here);
        }
        if (end > size_ || waiting_.size() >= most_waiting) return;
        const std::uint32_t inside = advance_(state_, bytes, header_size);
        waiting_.insert({at_, Waiting{end - footer_size, here.root, here.lost, here.sealed, state_, inside}});
        ends_.insert({end - footer_size, at_});
    }

    // The bytes at an expected header are not one.
    void broken(const std::uint8_t* bytes, const Link& here) {
        if (here.root == at_) {
            Stretch& before = stretches_.back();
            before.payload = before.records > 0 && ends(before.state, before.start, state_, at_,
                                                        load<std::uint32_t>(bytes));
        }
        note(here);
    }

    // The first of these offsets is in the known outer stream; the last one is used during a search.
    void note(const Link& here) {
        if (broken_.size() == 2) broken_.pop_back();
        Broken place;
        static_cast<Link&>(place) = here;
        place.state = state_;
        place.have = 0;
        broken_.push_back(place);
    }

    // Return whether the CRC of the bytes from `start` (state `from`) to `end` (state `to`) follows them.
    bool ends(std::uint32_t from, std::uint64_t start, std::uint32_t to, std::uint64_t end, std::uint32_t footer) const {
        return zeros_.forward(~from, end - start) == (to ^ ~crc::unmask(footer));
    }

    // Return whether an intact payload with a damaged header ends before the footer that was just read.
    bool sealed(Link& here) {
        if (broken_.empty()) return false;
        std::uint32_t state = state_;
        for (int shift = 24; shift >= 0; shift -= 8) state = backwards_(state, static_cast<std::uint8_t>(footer_ >> shift));
        for (const Broken& place : broken_) {
            if (at_ < place.at + footer_size) continue;
            const std::uint64_t end = at_ - footer_size;
            const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(place.have, end - place.at));
            std::uint32_t states[reach + 1] = {place.state};
            for (std::size_t i = 0; i < count; ++i) {
                states[i + 1] = crc::advance_by_tables(states[i], place.bytes + i, 1);
            }
            bytes_read_ += 2 * count;
            std::uint32_t wanted = zeros_.backward(state ^ ~crc::unmask(footer_), end - place.at - count);
            for (std::size_t i = count + 1; i-- > 0; wanted = backwards_(wanted, 0)) {
                // a header resembles a payload of eight bytes: a length and its CRC
                if (~states[i] != wanted || end - place.at - i == 8) continue;
                // a link from a single header is too weak to search the payload at any distance
                if (place.lost > 0 && i != header_size) continue;
                here.root = place.root;
                here.lost = place.lost + 1;
                here.sealed = place.lost == 0;
                return true;
            }
        }
        return false;
    }

    // The footer of all records that end here.
    void settle(std::uint32_t footer) {
        links_.erase(std::remove_if(links_.begin(), links_.end(), [&](const Link& link) { return link.at < at_; }),
                     links_.end());
        while (!ends_.empty() && ends_.begin()->first == at_) {
            const std::uint64_t start = ends_.begin()->second;
            const Waiting record = waiting_.at(start);
            if (ends(record.at_payload, start + header_size, state_, at_, footer)) {
                take(start, record);
                return;
            }
            forget({at_, start});
            if (record.root != nowhere) links_.push_back({at_ + footer_size, record.root, record.lost + 1, false});
        }
    }

    void forget(const std::pair<std::uint64_t, std::uint64_t> record) {
        ends_.erase(record);
        waiting_.erase(record.second);
    }

    // An intact record owns everything within it.
    void take(std::uint64_t start, const Waiting& record) {
        const std::uint64_t end = at_ + footer_size;
        nested_ += !stretches_.empty() && stretches_.back().end > start;
        for (auto inner = waiting_.lower_bound(start); inner != waiting_.end(); inner = waiting_.erase(inner)) {
            ends_.erase({inner->second.end, inner->first});
        }
        links_.clear();
        go(footer_size);
        while (!ends_.empty() && ends_.begin()->first < at_) forget(*ends_.begin());
        drop(std::min(start, record.root));
        while (!broken_.empty() && broken_.back().at > start) broken_.pop_back();
        if (!stretches_.empty() && stretches_.back().end == start) {
            Stretch& before = stretches_.back();
            before.end = end;
            before.header_end = before.reach = 0;
            ++before.records;
            return;
        }
        // the origin of this link may turn out to be within a record
        const bool rooted = !stretches_.empty() && stretches_.back().end == record.root;
        if (rooted) broken_.clear();
        Stretch stretch;
        stretch.start = start;
        stretch.end = end;
        stretch.records = 1;
        if (rooted) {
            stretch.root = record.root;
            stretch.lost = record.lost;
            stretch.sealed = record.sealed;
            if (!record.sealed) stretches_.back().reach = start;
        }
        stretch.state = record.at_header;
        stretches_.push_back(stretch);
    }

    // Stretches that end after an offset are within a record that began before it.
    void drop(std::uint64_t past) {
        while (!stretches_.empty() && stretches_.back().end > past) stretches_.pop_back();
    }

    void finish() {
        if (!stretches_.empty() && stretches_.back().end == at_) return;
        Link here{at_, nowhere, 0, false};
        if (!due(here)) sealed(here);
        tail_root_ = here.root;
        tail_lost_ = here.lost;
        if (tail_root_ != nowhere) drop(tail_root_);
    }

    std::uint64_t at_;
    std::uint64_t size_;
    crc::Advance advance_;
    Framing framing_{true};
    Zeros zeros_;
    Backwards backwards_;
    Cursor rest_{nullptr, 0};
    std::uint32_t state_ = 0;   // CRC state of all bytes so far
    std::uint32_t footer_ = 0;  // the preceding four bytes
    std::uint64_t bytes_read_ = 0;
    std::uint64_t nested_ = 0;
    std::map<std::uint64_t, Waiting> waiting_;                   // by offset of the header
    std::set<std::pair<std::uint64_t, std::uint64_t>> ends_;     // of their payloads, with the offset of the header
    std::vector<Link> links_;
    std::vector<Broken> broken_;
    std::vector<Stretch> stretches_;
    std::uint64_t tail_root_ = nowhere, tail_lost_ = 0;
};

}  // namespace dtf
