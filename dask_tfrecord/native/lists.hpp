// Repeated fields of protobuf messages, packed or not, value by value.
#pragma once

#include "cursor.hpp"

namespace dtf {

// Wire format of the values of a field.
enum class Wire { none, varint, four, eight, bytes };

// Packed values. Strings and bytes are never packed.
template <class Visit>
bool visit_packed(Cursor list, Wire wire, Visit visit) {
    constexpr std::size_t most = 512;
    std::int64_t run[most];
    const std::size_t width = wire == Wire::four ? 4 : 8;
    while (!list.empty()) {
        std::size_t n = 0;
        if (wire == Wire::varint) {
            if (!list.varints(run, most, n)) return false;
        } else {
            n = list.left() / width < most ? list.left() / width : most;
            if (n == 0) return false;
            const std::uint8_t* from = list.take(n * width);
            for (std::size_t i = 0; i < n; ++i) {
                run[i] = wire == Wire::four ? load<std::uint32_t>(from + 4 * i) : load<std::int64_t>(from + 8 * i);
            }
        }
        visit(run, n);
    }
    return true;
}

// Skip a field of a message at nesting depth `level`. If its wire type fits the field, call `visit` with runs of its
// bits, or, for strings and bytes, with their sizes.
template <class Visit>
bool visit_values(Cursor& message, std::uint32_t tag, Wire wire, std::size_t level, Visit visit) {
    std::int64_t one = 0;
    const unsigned form = tag & 7;
    if (wire != Wire::none && form == 2) {
        Cursor inside(message.here(), 0);
        if (!message.delimited(inside)) return false;
        if (wire != Wire::bytes) return visit_packed(inside, wire, visit);
        one = static_cast<std::int64_t>(inside.left());
    } else if (wire == Wire::varint && form == 0) {
        std::uint64_t bits;
        if (!message.varint(bits)) return false;
        one = static_cast<std::int64_t>(bits);
    } else if ((wire == Wire::four && form == 5) || (wire == Wire::eight && form == 1)) {
        const std::uint8_t* from = message.take(form == 5 ? 4 : 8);
        if (from == nullptr) return false;
        one = form == 5 ? load<std::uint32_t>(from) : load<std::int64_t>(from);
    } else {
        return message.skip(tag, level);
    }
    visit(&one, std::size_t{1});
    return true;
}

}  // namespace dtf
