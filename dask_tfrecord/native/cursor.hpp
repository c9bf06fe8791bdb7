// Bounds-checked reading: the only code that accesses raw input.
#pragma once

#include <algorithm>
#include <bitset>
#include <limits>
#include <string>
#include <string_view>

#include "varints.hpp"

namespace dtf {

// Upper bound of a count of values. Sizes in bytes computed from it cannot overflow.
constexpr std::size_t most_values = std::size_t{1} << 59;

enum class WireType : std::uint8_t { varint = 0, fixed64 = 1, delimited = 2, group = 3, end_group = 4, fixed32 = 5 };

constexpr std::uint32_t tag_of(std::uint32_t number, WireType type) {
    return number << 3 | static_cast<std::uint32_t>(type);
}
constexpr std::uint32_t length_delimited(std::uint32_t number) { return tag_of(number, WireType::delimited); }

// Begin of a short map entry up to a length, whose bytes end the entry. The lengths before it follow from it.
struct EntryHead {
    EntryHead() = default;  // no entry begins so

    // The last length is that of the value, or, with the tag of a list, that of the single field in this list of a Feature.
    // It is `known` unless that is 0.
    explicit EntryHead(std::string_view key, std::uint8_t list_tag = 0, std::uint8_t known = 0) {
        std::string begin{'\x0a', '\0', '\x0a', static_cast<char>(key.size())};
        begin.append(key).append({'\x12', '\0'});
        if (list_tag != 0) begin.append({static_cast<char>(list_tag), '\0', '\x0a', '\0'});
        if (begin.size() < sizeof(std::uint64_t) || begin.size() > sizeof bytes) return;
        size = begin.size();
        most = 0x7f - (size - 2);  // lengths have one byte
        fixed = known;
        std::memcpy(bytes, begin.data(), size);
        for (const std::size_t at : {std::size_t{1}, key.size() + 5, key.size() + 7, key.size() + 9}) {
            if (at >= size) break;
            bytes[at] = static_cast<std::uint8_t>(size - at - 1 + known);
            grows[at] = 1;
        }
    }

    bool exists() const { return most > 0; }

    // Return whether `size` bytes are the head of an entry whose last length is `n`, at most `most`, or 0 if it is fixed.
    DTF_INLINE bool begins(const std::uint8_t* from, std::size_t n) const {
        constexpr std::size_t step = sizeof(std::uint64_t);
        std::uint64_t some = differ(from, n, 0) | differ(from, n, size - step);
        if (size > 2 * step) some |= differ(from, n, step);
        for (std::size_t at = 2 * step; at + step < size; at += step) some |= differ(from, n, at);
        return some == 0;
    }

    std::size_t size = std::numeric_limits<std::size_t>::max(), most = 0;
    std::size_t fixed = 0;  // the last length if all entries have the same one
    std::uint8_t bytes[64] = {};
    std::uint8_t grows[64] = {};  // 1 at each length

private:
    // Bits of a word in which bytes differ from the head. Lengths stay below 0x80, so that none carries into the next.
    DTF_INLINE std::uint64_t differ(const std::uint8_t* from, std::size_t n, std::size_t at) const {
        return load<std::uint64_t>(from + at) ^ (load<std::uint64_t>(bytes + at) + n * load<std::uint64_t>(grows + at));
    }
};

// Every read checks the remaining size. False means that the bytes are malformed.
class Cursor {
public:
    Cursor(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}

    std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
    bool empty() const { return at_ == end_; }
    const std::uint8_t* here() const { return at_; }

    // The next n bytes, or null if fewer remain.
    const std::uint8_t* take(std::size_t n) {
        if (n > left()) return nullptr;
        const std::uint8_t* taken = at_;
        at_ += n;
        return taken;
    }

    static constexpr std::size_t max_depth = 100;  // limit of protobuf for nested messages and groups
    static constexpr std::size_t few = 16;  // bytes of varints that are read one by one

    // protobuf accepts up to ten bytes per value and discards bits past the 64th.
    DTF_INLINE bool varint(std::uint64_t& value) {
        if (at_ != end_ && *at_ < 0x80) {
            value = *at_++;
            return true;
        }
        return long_varint(value, 10);
    }

    // Read a varint of up to four bytes without a loop, whose end a processor would guess. The cursor is not empty.
    DTF_INLINE bool varint_at_once(std::uint64_t& value) {
        const std::size_t n = left();
        std::uint32_t word;
        if (n >= 4) {
            word = load<std::uint32_t>(at_);
        } else {
            // One to three bytes. The second of two, and a single one, are read twice.
            word = std::uint32_t{at_[0]} | std::uint32_t{at_[n / 2]} << n / 2 * 8 | std::uint32_t{at_[n - 1]} << (n - 1) * 8;
        }
        const std::uint32_t ends = ~word & 0x80808080u;
        if (ends == 0) return varint(value);
        const unsigned size = lowest_bit(ends) / 8 + 1;
        if (size > n) return false;
        value = varints::fold_short(word, size);
        at_ += size;
        return true;
    }

    // Tags and lengths: at most five bytes, and at most `most`.
    DTF_INLINE bool small_varint(std::uint32_t& value, std::uint64_t most) {
        if (at_ != end_ && *at_ < 0x80) {
            value = *at_++;
            return true;
        }
        return long_small_varint(value, most);
    }

    // A tag with a field number of at least 1.
    DTF_INLINE bool tag(std::uint32_t& value) { return small_varint(value, UINT32_MAX) && value >= 8; }

    // Read a length-delimited value as a separate cursor.
    DTF_INLINE bool delimited(Cursor& inside) {
        std::uint32_t size;
        if (!small_varint(size, INT32_MAX)) return false;
        const std::uint8_t* data = take(size);
        if (data == nullptr) return false;
        inside = Cursor(data, size);
        return true;
    }

    // Skip a short map entry that begins with a head; `end` is what follows the head.
    DTF_INLINE bool short_entry(const EntryHead& head, Cursor& entry, Cursor& end) {
        if (head.size > left()) return false;
        const std::size_t n = at_[head.size - 1];
        if (n > head.most || n > left() - head.size || !head.begins(at_, n)) return false;
        entry = Cursor(at_, head.size + n);
        at_ += head.size + n;
        end = Cursor(at_ - n, n);
        return true;
    }

    // The same for a head with a fixed length.
    DTF_INLINE bool fixed_entry(const EntryHead& head, std::size_t n, Cursor& end) {
        if (left() < n || head.size > left() - n || !head.begins(at_, 0)) return false;
        end = Cursor(at_ + head.size, n);
        at_ += head.size + n;
        return true;
    }

    // Enter the length-delimited field that spans all bytes, if its tag and length have one byte each.
    DTF_INLINE bool only_field(std::uint8_t& tag_byte) {
        if (left() < 2 || at_[1] >= 0x80 || at_[1] != left() - 2) return false;
        tag_byte = at_[0];
        at_ += 2;
        return true;
    }

    // Enter the single field of the single list that spans all bytes, if both lengths have one byte. Nearly every
    // Feature of one value has this form. The list has the given tag.
    DTF_INLINE bool only_value(std::uint8_t list_tag, Cursor& inside) const {
        const std::size_t size = left();
        if (size < 4 || size >= 0x80) return false;
        const auto all = static_cast<std::uint32_t>(size);
        if (load<std::uint32_t>(at_) != (list_tag | (all - 2) << 8 | 0x0au << 16 | (all - 4) << 24)) return false;
        inside = Cursor(at_ + 4, size - 4);
        return true;
    }

    // Decode the varint in the last `size` bytes. False also if it cannot be read together with the bytes before it.
    DTF_INLINE bool ends_in_varint(std::size_t size, std::uint64_t& value) const {
        if (size - 1 >= varints::longest) return false;
        if (left() >= 8) {
            const unsigned behind = size < 8 ? static_cast<unsigned>(size) : 8;
            if (!varints::fold_one(load<std::uint64_t>(end_ - 8), behind, value)) return false;
            if (size > left()) return false;
            for (std::size_t i = 9; i <= size; ++i) {
                if (end_[-static_cast<std::ptrdiff_t>(i)] < 0x80) return false;
                value = value << 7 | (end_[-static_cast<std::ptrdiff_t>(i)] & 0x7fu);
            }
            return true;
        }
        return left() >= 4 && size <= 4 &&  // so that `size` bytes are there
               varints::fold_one(std::uint64_t{load<std::uint32_t>(end_ - 4)} << 32, static_cast<unsigned>(size), value);
    }

    // Skip these bytes if they come next.
    DTF_INLINE bool pass(std::string_view bytes) {
        if (left() < bytes.size()) return false;
        if (!same(at_, reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size())) return false;
        at_ += bytes.size();
        return true;
    }

    // Decode varints until the cursor is empty or `capacity` values are written; false if one is malformed.
    bool varints(std::int64_t* out, std::size_t capacity, std::size_t& written) {
        written = 0;
        if (varints::decodes_masked && left() >= few) {
            at_ += varints::decode_short(at_, left(), out, capacity, written);
        }
        while (left() >= varints::block + varints::beyond && capacity - written >= varints::block) {
            const std::uint64_t inner = highest_bits(at_);
            if (varints::decodes_short && varints::all_within(inner, 3)) {
                at_ += varints::decode_short(at_, left(), out, capacity, written);
                continue;
            }
            unsigned used;
            if (!varints::decode_block(at_, inner, ~inner, out, written, used)) return false;
            at_ += used;
        }
        while (left() >= few && capacity - written > 1 && copied_block(out, capacity, written)) continue;
        while (written < capacity && !empty()) {
            std::uint64_t value;
            if (!varint_at_once(value)) return false;
            out[written++] = static_cast<std::int64_t>(value);
        }
        return true;
    }

    // Skip and count the remaining varints; false if one is malformed.
    DTF_APART bool count_varints(std::size_t& count) {
        const std::uint8_t* const from = at_;
        const std::size_t size = left();
        if (size > 0 && from[size - 1] >= 0x80) return false;
        at_ = end_;
        constexpr std::uint32_t last_bits = 0x80808080u;
        constexpr std::size_t most_words = 255;  // maximum that a byte counts
        std::size_t inner = 0, at = 0;
        bool some_long = false;
        while (size - at >= 4) {
            const std::size_t words = (size - at) / 4 < most_words ? (size - at) / 4 : most_words;
            std::uint32_t sums = 0, longs = 0;
            for (std::size_t i = 0; i < words; ++i) {
                const std::uint32_t bits = load<std::uint32_t>(from + at + 4 * i) & last_bits;
                sums += bits >> 7;
                longs |= bits == last_bits;
            }
            sums = (sums & 0x00ff00ffu) + (sums >> 8 & 0x00ff00ffu);
            inner += (sums & 0xffffu) + (sums >> 16);
            some_long = some_long || longs != 0;
            at += 4 * words;
        }
        for (; at < size; ++at) inner += from[at] >> 7;
        count = size - inner;
        // a value of more than ten bytes would have a full word among its first ten
        return !some_long || no_varint_beyond_ten(from, size);
    }

    // Skip a field of any wire type, including nested groups, without recursion. The message that contains the field is
    // at nesting depth `level`. In unknown groups, upb accepts the field number 0; protobuf in C++ and Java do not.
    template <bool as_upb = false>
    bool skip(std::uint32_t tag_of_field, std::size_t level) {
        std::uint32_t open[max_depth];
        std::size_t depth = 0;
        std::uint32_t tag_now = tag_of_field;
        for (;;) {
            std::uint64_t ignored;
            Cursor inside(at_, 0);
            switch (tag_now & 7) {
                case 0: if (!varint(ignored)) return false; break;
                case 1: if (take(8) == nullptr) return false; break;
                case 2: if (!delimited(inside)) return false; break;
                case 3:
                    if (level + depth == max_depth) return false;
                    open[depth++] = tag_now >> 3;
                    break;
                case 4:
                    if (depth == 0) return false;
                    --depth;
                    if (open[depth] != tag_now >> 3) return false;
                    break;
                case 5: if (take(4) == nullptr) return false; break;
                default: return false;
            }
            if (depth == 0) return true;
            if (as_upb ? !small_varint(tag_now, UINT32_MAX) : !tag(tag_now)) return false;
        }
    }

private:
    DTF_APART bool long_small_varint(std::uint32_t& value, std::uint64_t most) {
        // Nearly every longer length has two bytes, of any value that is allowed.
        if (left() >= 2 && at_[1] < 0x80) {
            value = (*at_ & 0x7fu) | std::uint32_t{at_[1]} << 7;
            at_ += 2;
            return true;
        }
        std::uint64_t wide;
        if (!long_varint(wide, 5) || wide > most) return false;
        value = static_cast<std::uint32_t>(wide);
        return true;
    }

    DTF_APART bool long_varint(std::uint64_t& value, unsigned most) {
        value = 0;
        for (unsigned i = 0; i < most && at_ != end_; ++i) {
            const std::uint64_t byte = *at_++;
            value |= (byte & 0x7f) << (7 * i);
            if (byte < 0x80) return true;
        }
        return false;
    }

    static bool no_varint_beyond_ten(const std::uint8_t* from, std::size_t size) {
        std::uint8_t beyond = 0;
        for (std::size_t i = 0; i + 10 <= size; ++i) {
            std::uint8_t inner = 0xff;
            for (std::size_t k = 0; k < 10; ++k) inner = static_cast<std::uint8_t>(inner & from[i + k]);
            beyond = static_cast<std::uint8_t>(beyond | inner);
        }
        return beyond < 0x80;
    }

    // Decode the values of a block that ends too early for the fast path, or that holds more values than fit. False if
    // nothing fits, or a value is malformed, even one that does not fit.
    DTF_APART bool copied_block(std::int64_t* out, std::size_t capacity, std::size_t& written) {
        std::uint8_t bytes[2 * varints::block] = {};  // zeros are valid values
        std::int64_t values[2 * varints::block];
        const std::size_t size = std::min(left(), varints::block);
        std::memcpy(bytes, at_, size);
        const std::uint64_t inner = highest_bits(bytes);
        std::uint64_t ends = ~inner & ~std::uint64_t{0} >> (varints::block - size);
        if (ends == 0) return false;
        std::size_t count = 0;
        unsigned used = highest_bit(ends) + 1;
        if (varints::decodes_short && varints::all_within(inner, 3)) {
            varints::decode_short(bytes, sizeof bytes, values, 2 * varints::block, count);
        } else if (!varints::decode_block(bytes, inner, ends, values, count, used)) {
            return false;
        }
        count = std::min(std::bitset<varints::block>(ends).count(), capacity - written);
        if (written + count == capacity) {
            for (std::size_t i = 1; i < count; ++i) ends &= ends - 1;
            used = lowest_bit(ends) + 1;
        }
        std::memcpy(out + written, values, count * sizeof *out);
        written += count;
        at_ += used;
        return true;
    }

    const std::uint8_t* at_;
    const std::uint8_t* end_;
};

// Return whether bytes are UTF-8 as Python decodes it: shortest forms, no surrogates, nothing above U+10FFFF.
inline bool is_utf8(const std::uint8_t* data, std::size_t size) {
    Cursor text(data, size);
    while (!text.empty()) {
        while (text.left() >= 8 && (load<std::uint64_t>(text.here()) & 0x8080808080808080u) == 0) text.take(8);
        const std::uint8_t* lead = text.take(1);
        if (lead == nullptr) return true;
        if (*lead < 0x80) continue;
        const unsigned more = *lead >= 0xf0 ? 3 : *lead >= 0xe0 ? 2 : 1;
        if (*lead < 0xc2 || *lead > 0xf4) return false;
        const std::uint8_t* tail = text.take(more);
        if (tail == nullptr) return false;
        for (unsigned i = 0; i < more; ++i) {
            if ((tail[i] & 0xc0) != 0x80) return false;
        }
        if ((*lead == 0xe0 && tail[0] < 0xa0) || (*lead == 0xed && tail[0] >= 0xa0)) return false;
        if ((*lead == 0xf0 && tail[0] < 0x90) || (*lead == 0xf4 && tail[0] >= 0x90)) return false;
    }
    return true;
}

}  // namespace dtf
