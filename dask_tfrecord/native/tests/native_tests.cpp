// Tests of the native core as a plain program: built with ASan and UBSan, it needs neither Python nor a framework.
#include "checks.hpp"
#include "fed.hpp"
#include "varint_support.hpp"

#include <functional>

namespace {

using namespace support;
using dtf::Fault;
using dtf::Kind;
using dtf::ValueLayout;
using dtf::Stop;

// ---- CRC

using CrcVersion = std::pair<const char*, dtf::crc::Function>;

std::vector<CrcVersion> crc_versions() {
    std::vector<CrcVersion> versions{{"tables", dtf::crc::by_tables}};
#if defined(DTF_TARGET_CRC)
    if (dtf::crc::has_instruction()) versions.emplace_back("instruction", dtf::crc::by_instruction);
#endif
#if defined(DTF_X86)
    if (dtf::has_clmul()) versions.emplace_back("instruction and product", dtf::crc::by_product);
#endif
    return versions;
}

void crc_of_known_vectors() {
    std::string ascending, descending;
    for (int i = 0; i < 32; ++i) {
        ascending += static_cast<char>(i);
        descending += static_cast<char>(31 - i);
    }
    const std::string read_command =  // RFC 3720, B.4
        std::string("\x01\xc0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x14\0\0\0\0\0\x04\0\0\0\0\x14\0\0\0\x18", 32) +
        std::string("\x28\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0", 16);
    for (const auto& [name, crc] : crc_versions()) {
        const auto of = [crc = crc](const std::string& bytes) { return crc(bytes_of(bytes), bytes.size()); };
        CHECK(of("") == 0);
        CHECK(of("123456789") == 0xe3069283);
        CHECK(of(std::string(32, '\0')) == 0x8a9136aa);
        CHECK(of(std::string(32, '\xff')) == 0x62a8ab43);
        CHECK(of(ascending) == 0x46dd794e);
        CHECK(of(descending) == 0x113fdb5c);
        CHECK(of(read_command) == 0xd9963a56);
    }
    CHECK(framed("abc") == std::string("\x03\0\0\0\0\0\0\0\xb0\x99\x49\x0e" "abc" "\x6e\x57\xf1\x21", 19));
}

void crc_versions_agree_on_every_length_and_offset() {
    constexpr std::size_t most = 9000;
    Random random(1);
    std::string bytes;
    for (std::size_t i = 0; i < most + 8; ++i) bytes += static_cast<char>(random.next());
    const Exact block(bytes);
    std::vector<std::uint32_t> states;  // bit by bit, from the definition
    std::size_t wrong = 0;
    for (std::size_t offset = 0; offset < 8; ++offset) {
        std::uint32_t state = ~std::uint32_t{0};
        for (std::size_t size = 0; size <= most; ++size) {
            for (const auto& [name, crc] : crc_versions()) {
                wrong += crc(block.data() + offset, size) != ~state;
            }
            state ^= block.data()[offset + size];
            for (int bit = 0; bit < 8; ++bit) state = (state & 1) != 0 ? state >> 1 ^ dtf::crc::polynomial : state >> 1;
        }
    }
    CHECK(wrong == 0);
}

void crc_dispatch_takes_the_fastest_version() {
    CHECK(dtf::crc::best() == crc_versions().back().second);
#if defined(DTF_TARGET_CRC)
    CHECK((dtf::crc::best() == dtf::crc::by_tables) != dtf::crc::has_instruction());
#endif
}

// ---- varints

void varints_of_every_length() {
    for (unsigned bits = 0; bits <= 64; ++bits) {
        for (const int nudge : {-1, 0, 1}) {
            const std::uint64_t value = (bits == 64 ? 0 : std::uint64_t{1} << bits) + static_cast<std::uint64_t>(nudge);
            for (std::size_t size = varint(value).size(); size <= 11; ++size) {
                const Exact encoded(varint(value, size));
                dtf::Cursor cursor = encoded.cursor();
                std::uint64_t read = ~value;
                CHECK(cursor.varint(read) == (size <= 10));
                CHECK(size > 10 || (read == value && cursor.empty()));
                for (std::size_t cut = 0; cut < size; ++cut) {
                    const Exact part(std::string_view(reinterpret_cast<const char*>(encoded.data()), cut));
                    dtf::Cursor shorter = part.cursor();
                    CHECK(!shorter.varint(read));
                }
            }
        }
    }
    const Exact past_64_bits(std::string(9, '\xff') + '\x7f');
    std::uint64_t read = 0;
    dtf::Cursor cursor = past_64_bits.cursor();
    CHECK(cursor.varint(read) && read == ~std::uint64_t{0});
}

void lengths_and_tags_keep_to_their_bounds() {
    const auto small = [](const std::string& bytes, std::uint64_t most) {
        const Exact block(bytes);
        dtf::Cursor cursor = block.cursor();
        std::uint32_t value = 0;
        return cursor.small_varint(value, most) && cursor.empty();
    };
    CHECK(small(varint(INT32_MAX), INT32_MAX));
    CHECK(!small(varint(std::uint64_t{INT32_MAX} + 1), INT32_MAX));
    CHECK(small(varint(UINT32_MAX), UINT32_MAX));
    CHECK(!small(varint(std::uint64_t{UINT32_MAX} + 1), UINT32_MAX));
    CHECK(small(varint(1, 5), INT32_MAX));
    CHECK(!small(varint(1, 6), INT32_MAX));
    CHECK(!small("", 1));
    const auto is_tag = [](const std::string& bytes) {
        const Exact block(bytes);
        dtf::Cursor cursor = block.cursor();
        std::uint32_t value = 0;
        return cursor.tag(value);
    };
    CHECK(is_tag(tag(1, 0)) && is_tag(tag((1u << 29) - 1, 5)));
    for (std::uint64_t no_field = 0; no_field < 8; ++no_field) CHECK(!is_tag(varint(no_field)));
    const auto inside = [](const std::string& bytes) {
        const Exact block(bytes);
        dtf::Cursor cursor = block.cursor();
        dtf::Cursor content(block.data(), 0);
        return cursor.delimited(content) && content.left() == 3;
    };
    CHECK(inside(varint(3) + "abc") && inside(varint(3) + "abcd"));
    CHECK(!inside(varint(3) + "ab") && !inside(varint(UINT32_MAX) + "abc"));
}

void windows_of_varints_agree_with_one_by_one() {
    Random random(2);
    std::size_t wrong = 0, refused = 0;
    for (int round = 0; round < 30000; ++round) {
        const std::size_t longest = 1 + random.below(10);
        const std::size_t most = random.below(64) == 0 ? 3000 : 200;
        std::string packed = random_varints(random, random.below(most), longest, random.below(2) == 0);
        if (random.below(4) == 0) {  // short ones next to long ones
            packed += random_varints(random, random.below(100), 1 + random.below(3), false);
            packed += random_varints(random, random.below(9), 10, true);
            packed += random_varints(random, random.below(100), 1 + random.below(3), false);
        }
        if (!packed.empty() && random.below(4) == 0) {  // runs of continuation bytes, and cuts
            const std::size_t at = random.below(packed.size());
            const std::size_t run = std::min(packed.size() - at, 1 + random.below(random.below(8) == 0 ? 80 : 12));
            for (std::size_t i = 0; i < run; ++i) packed[at + i] = static_cast<char>(packed[at + i] | 0x80);
            packed.resize(packed.size() - random.below(std::min<std::size_t>(packed.size(), 3)));
        }
        bool holds;
        const std::size_t room = random.below(3) == 0 ? random.below(most + 50) : packed.size();
        wrong += !varints_agree(packed, room, holds);
        refused += !holds;
    }
    CHECK(wrong == 0);
    CHECK(refused > 1000);
}

// Ten bytes are the most that a value takes, wherever it lies.
void varints_are_counted_as_they_are_read() {
    std::size_t wrong = 0;
    for (std::size_t size = 0; size < 40; ++size) {
        for (std::size_t begin = 0; begin <= size; ++begin) {
            for (std::size_t run = 0; run <= size - begin && run < 13; ++run) {
                std::string packed(size, '\1');
                for (std::size_t i = 0; i < run; ++i) packed[begin + i] = '\x80';
                const Exact block(packed);
                dtf::Cursor counted = block.cursor(), read = block.cursor();
                std::vector<std::int64_t> expected;
                std::size_t count = 99;
                const bool holds = one_by_one(read, size, expected);
                wrong += counted.count_varints(count) != holds;
                wrong += holds && (count != expected.size() || !counted.empty());
            }
        }
    }
    CHECK(wrong == 0);
    for (std::size_t size = 1; size <= 10; ++size) {
        std::string packed;
        for (int i = 0; i < 3000; ++i) packed += varint(1, size);
        const Exact block(packed);
        dtf::Cursor counted = block.cursor();
        std::size_t count = 0;
        CHECK(counted.count_varints(count) && count == 3000);
    }
    const std::string many(10000, '\x80');
    const Exact block(varint(UINT64_MAX) + many + '\1');
    dtf::Cursor counted = block.cursor();
    std::size_t count;
    CHECK(!counted.count_varints(count));
}

// ---- UTF-8

// By the definition: code points, each in its shortest form, none a surrogate.
bool utf8_by_definition(const std::uint8_t* data, std::size_t size) {
    for (std::size_t at = 0; at < size;) {
        const std::uint32_t lead = data[at];
        const std::size_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
        if (length == 0 || length > size - at) return false;
        std::uint32_t point = length == 1 ? lead : lead & (0x7fu >> length);
        for (std::size_t i = 1; i < length; ++i) {
            if (data[at + i] >> 6 != 2) return false;
            point = point << 6 | (data[at + i] & 0x3fu);
        }
        const std::uint32_t least = length == 1 ? 0 : length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
        if (point < least || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) return false;
        at += length;
    }
    return true;
}

void utf8_of_every_sequence_of_three_bytes() {
    std::uint8_t bytes[3];
    std::size_t wrong = 0;
    for (std::uint32_t all = 0; all < 1u << 24; ++all) {
        for (std::size_t i = 0; i < 3; ++i) bytes[i] = static_cast<std::uint8_t>(all >> (16 - 8 * i));
        wrong += dtf::is_utf8(bytes, 3) != utf8_by_definition(bytes, 3);
        if ((all & 0xff) == 0) wrong += dtf::is_utf8(bytes, 2) != utf8_by_definition(bytes, 2);
        if ((all & 0xffff) == 0) wrong += dtf::is_utf8(bytes, 1) != utf8_by_definition(bytes, 1);
    }
    CHECK(wrong == 0);
    CHECK(dtf::is_utf8(bytes, 0));
}

void utf8_of_four_bytes_at_the_edges() {
    const std::uint8_t edges[] = {0x00, 0x7f, 0x80, 0xbf, 0xc0, 0xff};
    std::size_t wrong = 0;
    for (std::uint32_t lead = 0xe0; lead < 0x100; ++lead) {
        for (std::uint32_t second = 0; second < 0x100; ++second) {
            for (const std::uint8_t third : edges) {
                for (const std::uint8_t fourth : edges) {
                    const std::uint8_t bytes[] = {static_cast<std::uint8_t>(lead), static_cast<std::uint8_t>(second),
                                                  third, fourth};
                    wrong += dtf::is_utf8(bytes, 4) != utf8_by_definition(bytes, 4);
                }
            }
        }
    }
    CHECK(wrong == 0);
}

void utf8_beside_runs_of_ascii() {
    std::size_t wrong = 0;
    const std::string_view odds[] = {"\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xff", "\xc3", "\xf0\x9f\x98"};
    for (const std::string_view odd : odds) {
        for (std::size_t before = 0; before < 20; ++before) {
            for (std::size_t after = 0; after < 20; ++after) {
                const Exact block(std::string(before, 'a').append(odd) + std::string(after, 'b'));
                wrong += dtf::is_utf8(block.data(), block.size()) != utf8_by_definition(block.data(), block.size());
            }
        }
    }
    CHECK(wrong == 0);
}

// ---- keys

void equal_spans_have_equal_bytes() {
    for (std::size_t size = 0; size < 40; ++size) {
        const Exact one(std::string(size, 'k'));
        Exact other(std::string(size, 'k'));
        CHECK(dtf::same(one.data(), other.data(), size));
        for (std::size_t at = 0; at < size; ++at) {
            other.data()[at] = 'j';
            CHECK(!dtf::same(one.data(), other.data(), size));
            other.data()[at] = 'k';
        }
    }
}

// ---- fields that are skipped

bool skips(const std::string& field, std::size_t level = 0) {
    const Exact block(field);
    dtf::Cursor cursor = block.cursor();
    std::uint32_t first = 0;
    return cursor.tag(first) && cursor.skip(first, level) && cursor.empty();
}

std::string groups(std::size_t depth, const std::string& inside = "") {
    std::string field;
    for (std::size_t i = 0; i < depth; ++i) field += tag(static_cast<std::uint32_t>(i) + 1, 3);
    field += inside;
    for (std::size_t i = depth; i > 0; --i) field += tag(static_cast<std::uint32_t>(i), 4);
    return field;
}

void fields_of_every_wire_type_are_skipped() {
    const std::vector<std::string> fields{tag(9, 0) + varint(300), tag(9, 1) + "12345678", delimited(9, "abc"),
                                          groups(3), tag(9, 5) + "1234"};
    for (const std::string& field : fields) {
        CHECK(skips(field));
        CHECK(skips(groups(2, field + field)));
        for (std::size_t cut = 0; cut < field.size(); ++cut) CHECK(!skips(field.substr(0, cut)));
    }
    CHECK(!skips(tag(9, 6)) && !skips(tag(9, 7)));
    CHECK(!skips(groups(1, tag(9, 6))));
}

void groups_nest_as_deep_as_protobuf_allows() {
    for (std::size_t level = 0; level < 5; ++level) {
        CHECK(skips(groups(100 - level), level));
        CHECK(!skips(groups(101 - level), level));
    }
    CHECK(!skips(groups(100000)));
    CHECK(!skips(tag(1, 4)));                                          // never begun
    CHECK(!skips(tag(1, 3) + tag(2, 4)));                              // another one's end
    CHECK(!skips(tag(1, 3) + tag(2, 3) + tag(1, 4) + tag(2, 4)));      // crossed
    CHECK(!skips(tag(1, 3) + varint(0) + varint(0) + tag(1, 4)));      // field 0
    CHECK(skips(tag(1, 3) + varint(1 << 3 | 4, 5)));                   // an over-long end
}

// ---- buffers

void buffers_grow_and_keep_their_content() {
    dtf::Buffer buffer;
    CHECK(buffer.grow(0) != nullptr && buffer.size() == 0);
    for (std::int64_t i = 0; i < 100000; ++i) CHECK(buffer.push(i));
    bool same = true;
    for (std::size_t i = 0; i < 100000; ++i) same = same && buffer.at<std::int64_t>(i) == static_cast<std::int64_t>(i);
    CHECK(same && buffer.size() == 800000 && !buffer.borrowed());
    buffer.truncate(16);
    CHECK(buffer.reserve(std::size_t{8} << 20) && buffer.at<std::int64_t>(1) == 1);
    dtf::Buffer moved(std::move(buffer));
    CHECK(moved.size() == 16 && moved.at<std::int64_t>(1) == 1);
    const dtf::Memory memory = moved.release();
    CHECK(dtf::load<std::int64_t>(memory.data() + 8) == 1 && moved.size() == 0 && moved.room() == 0);
    CHECK(moved.release().data() != nullptr);  // also of an empty buffer
}

void large_memory_keeps_its_content() {
    constexpr std::size_t mib = std::size_t{1} << 20;
    dtf::Memory memory;
    std::size_t before = 0;
    // From malloc to mapped memory, which grows twice and is cut; cut memory grows again.
    for (const std::size_t size : {mib, 4 * mib - 1, 4 * mib, 9 * mib + 5, 40 * mib, 3 * mib + 7, std::size_t{1}, mib, 8 * mib}) {
        CHECK(memory.resize(size) && memory.size() >= size && memory.size() - size < 2 * mib);
        const std::size_t kept = before < size ? before : size;
        bool same = true;
        for (std::size_t i = 0; i < kept; i += 4093) same = same && memory.data()[i] == static_cast<std::uint8_t>(i);
        CHECK(same);
        for (std::size_t i = 0; i < memory.size(); ++i) memory.data()[i] = static_cast<std::uint8_t>(i);
        before = memory.size();
    }
#if defined(DTF_HUGE_PAGES)  // AddressSanitizer ends a program that requests so much of malloc.
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    CHECK(!memory.resize(most) && !memory.resize(most / 4) && memory.size() == before);
    CHECK(memory.data()[4093] == (4093 & 0xff));
#endif
    dtf::Memory taken = std::move(memory);
    CHECK(taken.size() == before && taken.data()[before - 1] == static_cast<std::uint8_t>(before - 1));
}

#if defined(DTF_HUGE_PAGES)
// At most 128 MiB: two of three mappings have their content when they come back.
void freed_memory_is_used_again() {
    constexpr std::size_t size = std::size_t{60} << 20;
    const auto marked = [](bool mark) {
        dtf::Memory all[3];
        std::size_t found = 0;
        for (dtf::Memory& memory : all) {
            CHECK(memory.resize(1000) && memory.resize(size) && memory.size() >= size);
            found += memory.data()[size - 1] == 7;
            if (mark) memory.data()[size - 1] = 7;
        }
        return found;
    };
    CHECK(marked(true) == 0);
    CHECK(marked(false) == 2);
}
#endif

void buffers_reserve_the_expected_size() {
    dtf::Buffer buffer;
    buffer.preallocate(1000);
    CHECK(buffer.room() == 0);  // a factor of zero bytes is zero bytes
    for (std::int64_t i = 0; i < 10000; ++i) buffer.push(i);
    const std::size_t before = buffer.room();
    for (const double times : {0.0, 0.5, 1.0, -3.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
        buffer.preallocate(times);
        CHECK(buffer.room() == before && buffer.size() == 80000);
    }
    buffer.preallocate(10);
    CHECK(buffer.room() >= 9 * 80000 && buffer.at<std::int64_t>(9999) == 9999);
    Exact memory("12345678");
    dtf::Buffer lent(memory.data(), memory.size());
    lent.grow(8);
    lent.preallocate(1e6);
    CHECK(lent.room() == 0 && lent.data() == memory.data());
}

void buffers_refuse_excessive_sizes() {
    dtf::Buffer buffer;
    bool refused = false;
    try {
        buffer.reserve(std::numeric_limits<std::size_t>::max() - 8);
    } catch (const std::bad_alloc&) {
        refused = true;
    }
    CHECK(refused);
}

void borrowed_memory_never_grows() {
    Exact memory("12345678");
    dtf::Buffer buffer(memory.data(), memory.size());
    CHECK(buffer.borrowed() && buffer.grow(9) == nullptr && buffer.size() == 0);
    CHECK(buffer.push(std::int64_t{7}) && buffer.room() == 0);
    CHECK(!buffer.push(std::uint8_t{1}) && buffer.grow(0) != nullptr);
    CHECK(dtf::load<std::int64_t>(memory.data()) == 7);
}

void offered_memory_is_left_when_it_is_full() {
    Exact memory("12345678");
    dtf::Buffer buffer = dtf::Buffer::offered(memory.data(), memory.size());
    buffer.preallocate(1e6);
    CHECK(buffer.borrowed() && buffer.moves() && buffer.push(std::int64_t{7}) && buffer.data() == memory.data());
    buffer.truncate(4);
    CHECK(buffer.push(std::int32_t{8}) && buffer.borrowed());
    CHECK(buffer.push(std::uint8_t{1}) && !buffer.borrowed() && !buffer.moves() && buffer.data() != memory.data());
    CHECK(buffer.size() == 9 && buffer.at<std::int32_t>(0) == 7 && buffer.at<std::int32_t>(1) == 8);
    CHECK(dtf::load<std::int32_t>(memory.data()) == 7);
    dtf::Buffer none = dtf::Buffer::offered(memory.data(), 0);
    CHECK(none.grow(0) != nullptr && none.borrowed() && none.push(std::uint8_t{1}) && !none.borrowed());
}

void varints_stay_in_offered_memory_as_long_as_they_fit() {
    const std::string two = framed(example({entry("k", int64_list({300, 1}))}));
    for (const std::size_t places : {0u, 1u, 2u, 3u, 4u, 5u, 100u}) {
        Exact memory(std::string(8 * places, '\0'));
        dtf::Decoder decoder({spec("k", dtf::Kind::int64, dtf::ValueLayout::ragged)}, true, false);
        decoder.columns()[0].values = dtf::Buffer::offered(memory.data(), memory.size());
        const Exact block(two + two);
        CHECK(decoder.feed(block.data(), block.size(), UINT64_MAX).records == 2);
        dtf::Buffer& values = decoder.columns()[0].values;
        CHECK(values.borrowed() == (places >= 4) && values.size() == 32);
        CHECK(values.at<std::int64_t>(2) == 300 && values.at<std::int64_t>(3) == 1);
    }
}

// ---- framing

std::string three_records() { return framed("one") + framed("") + framed("three"); }

dtf::Walk scan(const std::string& bytes, std::uint64_t limit = UINT64_MAX, bool check = true) {
    const Exact block(bytes);
    return dtf::Framing(check).scan(block.data(), block.size(), limit);
}

void scans_stop_where_they_should() {
    const std::string bytes = three_records();
    dtf::Walk walk = scan(bytes);
    CHECK(walk.records == 3 && walk.consumed == bytes.size() && walk.stop == Stop::more && walk.need == 12);
    walk = scan(bytes, 2);
    CHECK(walk.records == 2 && walk.consumed == 19 + 16 && walk.stop == Stop::limit);
    CHECK(scan(bytes, 0).stop == Stop::limit && scan("", 0).records == 0);
    CHECK(scan("").stop == Stop::more && scan("").need == 12);
    walk = scan(bytes.substr(0, 14));  // the next border lies past the end
    CHECK(walk.records == 1 && walk.consumed == 19 && walk.stop == Stop::more && walk.need == 12);
    for (std::size_t cut = 0; cut < 12; ++cut) {
        walk = scan(bytes.substr(0, 19 + cut));
        CHECK(walk.records == 1 && walk.consumed == 19 && walk.stop == Stop::more);
    }
    for (std::size_t bit = 0; bit < 96; ++bit) {
        std::string flipped = bytes;
        flipped[19 + bit / 8] = static_cast<char>(flipped[19 + bit / 8] ^ (1 << bit % 8));
        walk = scan(flipped);
        CHECK(walk.records == 1 && walk.consumed == 19 && walk.stop == Stop::framing);
    }
}

std::string header(std::uint64_t length) {
    const std::string bytes = little_endian(length);
    return bytes + little_endian(masked(bytes));
}

void excessive_lengths_are_refused() {
    for (const std::uint64_t length : {std::uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 15, dtf::absurd_length + 1}) {
        for (const bool check : {true, false}) {
            const dtf::Walk walk = scan(framed("one") + header(length), UINT64_MAX, check);
            CHECK(walk.records == 1 && walk.consumed == 19 && walk.stop == Stop::more && walk.need == UINT64_MAX);
            dtf::Decoder decoder({}, check, false);
            const Exact block(header(length) + "payload");
            const dtf::Walk fed = decoder.feed(block.data(), block.size(), UINT64_MAX);
            CHECK(fed.records == 0 && fed.consumed == 0 && fed.stop == Stop::more && fed.need == UINT64_MAX);
        }
    }
    const dtf::Walk walk = scan(header(dtf::absurd_length));
    CHECK(walk.records == 1 && walk.consumed == dtf::absurd_length + 16 && walk.stop == Stop::more);
}

void framing_is_trusted_without_checks() {
    std::string bytes = framed(example(entry("i", int64_list({5}))));
    for (std::size_t at = 8; at < 12; ++at) bytes[at] = '!';
    for (std::size_t at = bytes.size() - 4; at < bytes.size(); ++at) bytes[at] = '!';
    const Exact block(bytes);
    for (const bool check : {true, false}) {
        dtf::Decoder decoder({spec("i", Kind::int64, ValueLayout::fixed)}, check, false);
        const dtf::Walk walk = decoder.feed(block.data(), block.size(), 1);
        CHECK(walk.stop == (check ? Stop::framing : Stop::limit) && walk.records == (check ? 0 : 1));
        CHECK(scan(bytes, 1, check).stop == walk.stop);
    }
}

void payloads_and_footers_are_checked() {
    const std::string record = framed(example(entry("i", int64_list({5}))));
    for (std::size_t bit = 96; bit < 8 * record.size(); ++bit) {
        std::string flipped = record + record;
        flipped[record.size() + bit / 8] = static_cast<char>(flipped[record.size() + bit / 8] ^ (1 << bit % 8));
        const Exact block(flipped);
        dtf::Decoder decoder({spec("i", Kind::int64, ValueLayout::fixed)}, true, false);
        const dtf::Walk walk = decoder.feed(block.data(), block.size(), UINT64_MAX);
        CHECK(walk.records == 1 && walk.consumed == record.size() && walk.stop == Stop::framing);
        CHECK(decoder.columns()[0].values.size() == sizeof(std::int64_t));
    }
}

// ---- records into columns

using Ints = std::vector<std::int64_t>;
using Floats = std::vector<float>;

void fixed_columns() {
    const std::vector<std::string> records{
        example(entry("i", int64_list({1, -2})) + entry("f", float_list({0.5f, -1})) +
                entry("b", bytes_list({"x", ""}))),
        example(entry("b", bytes_list({"", "yz"})) + entry("i", int64_list({INT64_MIN, 300})) +
                entry("f", float_list({2, 3})))};
    Fed fed({spec("i", Kind::int64, ValueLayout::fixed, 2), spec("f", Kind::floats, ValueLayout::fixed, 2),
             spec("b", Kind::bytes, ValueLayout::fixed, 2)},
            records);
    CHECK(fed.whole() && fed.walk.records == 2);
    CHECK(items<std::int64_t>(fed.column(0).values) == Ints{1, -2, INT64_MIN, 300});
    CHECK(items<float>(fed.column(1).values) == Floats{0.5f, -1, 2, 3});
    CHECK(text(fed.column(2).values) == "xyz");
    CHECK(items<std::int64_t>(fed.column(2).value_splits) == Ints{0, 1, 1, 1, 3});
}

void ragged_columns() {
    Fed fed({spec("i", Kind::int64, ValueLayout::ragged), spec("f", Kind::floats, ValueLayout::ragged, 2),
             spec("b", Kind::bytes, ValueLayout::ragged)},
            {example(entry("i", int64_list({1, 2, 3})) + entry("f", float_list({1, 2}))), example(""), "",
             example(entry("b", bytes_list({"ab", "", "c"})) + entry("i", "") + entry("f", float_list({})))});
    CHECK(fed.whole() && fed.walk.records == 4);
    CHECK(items<std::int64_t>(fed.column(0).values) == Ints{1, 2, 3});
    CHECK(items<std::int64_t>(fed.column(0).row_splits) == Ints{0, 3, 3, 3, 3});
    CHECK(items<std::int64_t>(fed.column(1).row_splits) == Ints{0, 2, 2, 2, 2});
    CHECK(text(fed.column(2).values) == "abc");
    CHECK(items<std::int64_t>(fed.column(2).value_splits) == Ints{0, 2, 2, 3});
    CHECK(items<std::int64_t>(fed.column(2).row_splits) == Ints{0, 0, 0, 0, 3});
}

void raw_columns() {
    const std::string record = example(entry("r", bytes_list({"12345678"})));
    for (const std::size_t swap : {1u, 2u, 4u, 8u}) {
        Fed fed({spec("r", Kind::bytes, ValueLayout::raw, 8, swap)}, {record, record});
        const std::string turned = swap == 1   ? "12345678"
                                   : swap == 2 ? "21436587"
                                   : swap == 4 ? "43218765"
                                               : "87654321";
        CHECK(fed.whole() && text(fed.column().values) == turned + turned);
    }
    Fed empty({spec("r", Kind::bytes, ValueLayout::raw, 0)}, {example(entry("r", bytes_list({""})))});
    CHECK(empty.whole() && empty.column().values.size() == 0);
}

void one_message_in_many_encodings() {
    const std::string minus_two = varint(static_cast<std::uint64_t>(-2));
    const std::string i = varint(1) + minus_two + varint(300);
    const std::string packed = delimited(3, delimited(1, i));
    const std::string one = tag(1, 0) + varint(1), two = tag(1, 0) + minus_two, three = tag(1, 0) + varint(300);
    const std::string unknown = tag(7, 0) + varint(1) + groups(2, delimited(1, "x")) + tag(1, 1) + "12345678";
    const std::vector<std::string> encodings{
        example(entry("i", packed)),
        example(entry("i", delimited(3, one + two + three))),
        example(entry("i", delimited(3, one + delimited(1, minus_two) + three))),
        example(entry("i", delimited(3, delimited(1, i.substr(0, 1)) + delimited(1, "") + delimited(1, i.substr(1))))),
        example(entry("i", delimited(3, one) + delimited(3, two + three))),
        example(delimited(1, delimited(2, packed) + delimited(1, "i"))),
        example(delimited(1, delimited(1, "other") + delimited(2, packed) + delimited(1, "i"))),
        example(delimited(1, delimited(2, delimited(3, one)) + delimited(1, "i") +
                                 delimited(2, delimited(3, two + three)))),
        example(delimited(1, unknown.substr(0, 2) + delimited(1, "i") + delimited(2, packed))),
        unknown.substr(0, 2) +
            example(unknown + entry("i", unknown + delimited(3, unknown + delimited(1, i)) + unknown)),
        example(entry("j", packed)) + example(entry("i", packed)),
        example(entry("i", int64_list({9, 9, 9})) + entry("i", packed)),
        example(entry("i", int64_list({9}) + bytes_list({"x"}) + packed)),
        example(entry("i", packed + delimited(3, ""))),
        example(entry("i", tag(3, 2) + varint(9 + i.size(), 5) + varint(10, 5) + varint(i.size(), 4) + i)),
        example(entry("i", delimited(3, tag(1, 0) + varint(1, 10) + delimited(1, minus_two + varint(300, 9))))),
    };
    for (const ValueLayout layout : {ValueLayout::fixed, ValueLayout::ragged}) {
        Fed fed({spec("i", Kind::int64, layout, 3)}, encodings);
        CHECK(fed.whole() && fed.walk.records == encodings.size());
        Ints expected;
        for (std::size_t row = 0; row < encodings.size(); ++row) expected.insert(expected.end(), {1, -2, 300});
        CHECK(items<std::int64_t>(fed.column().values) == expected);
    }
    const std::string halves = tag(1, 5) + little_endian(0.5f) + delimited(1, little_endian(2.0f)) + tag(1, 5) +
                               little_endian(-1.0f);
    Fed floats({spec("f", Kind::floats, ValueLayout::fixed, 3)}, {example(entry("f", delimited(2, halves)))});
    CHECK(floats.whole() && items<float>(floats.column().values) == Floats{0.5f, 2, -1});
}

void overridden_values_leave_no_output() {
    const Specs specs{spec("i", Kind::int64, ValueLayout::fixed), spec("b", Kind::bytes, ValueLayout::ragged),
                      spec("r", Kind::bytes, ValueLayout::raw, 2)};
    const std::string good = entry("i", int64_list({1})) + entry("b", bytes_list({"x", "y"})) +
                             entry("r", bytes_list({"rr"}));
    Fed fed(specs, {example(entry("i", int64_list({7, 7, 7})) + entry("b", bytes_list({"stale"})) +
                            entry("r", bytes_list({"zz"})) + good),
                    example(good + entry("b", "")),
                    example(good + entry("b", bytes_list({"s", "t"}) + float_list({1}) + bytes_list({"u"}))),
                    example(good + entry("r", bytes_list({"no"}) + int64_list({1}) + bytes_list({"ss"})))});
    CHECK(fed.whole());
    CHECK(items<std::int64_t>(fed.column(0).values) == Ints{1, 1, 1, 1});
    CHECK(text(fed.column(1).values) == "xyuxy");
    CHECK(items<std::int64_t>(fed.column(1).row_splits) == Ints{0, 2, 2, 3, 5});
    CHECK(items<std::int64_t>(fed.column(1).value_splits) == Ints{0, 1, 2, 3, 4, 5});
    CHECK(text(fed.column(2).values) == "rrrrrrss");
}

void keys_in_any_order_find_their_columns() {
    Random random(3);
    std::vector<std::string> keys{"", "a", "b", "long enough to live on the heap, beyond any small string", "\xc3\xa4",
                                  "e"};
    Specs specs;
    for (const std::string& key : keys) specs.push_back(spec(key, Kind::int64, ValueLayout::fixed));
    specs[4].layout = ValueLayout::skipped;
    std::vector<std::string> records;
    for (int round = 0; round < 200; ++round) {
        std::string entries;
        for (std::size_t i = keys.size(); i > 1; --i) std::swap(keys[i - 1], keys[random.below(i)]);
        for (const std::string& key : keys) {
            entries += entry(key, int64_list({key.empty() ? 0 : key[0]}));
            if (random.below(3) == 0) entries += entry("unknown" + std::to_string(random.below(5)), float_list({1}));
        }
        records.push_back(example(entries));
    }
    Fed fed(specs, records);
    CHECK(fed.whole());
    for (std::size_t i = 0; i < specs.size(); ++i) {
        const std::int64_t expected = specs[i].key.empty() ? 0 : specs[i].key[0];
        const Ints found = items<std::int64_t>(fed.column(i).values);
        CHECK(found == Ints(specs[i].layout == ValueLayout::skipped ? 0 : records.size(), expected));
    }
}

// A key at the same position as before is not validated again; every other key is.
void keys_of_no_column_are_checked_everywhere() {
    const Specs specs{spec("k", Kind::int64, ValueLayout::fixed), spec("", Kind::int64, ValueLayout::fixed)};
    const std::string wanted = entry("k", int64_list({1})), empty = entry("", int64_list({2}));
    const std::string some = entry("one", "") + entry("two", ""), longer(101, 'x');
    const std::vector<std::string> good{example(some + wanted + empty), example(some + wanted + empty),
                                        example(wanted + some + empty), example(empty + wanted + entry(longer, "")),
                                        example(entry(longer, "") + empty + wanted), example(some + wanted + empty)};
    Fed fed(specs, good);
    CHECK(fed.whole() && items<std::int64_t>(fed.column(0).values) == Ints(good.size(), 1));
    CHECK(items<std::int64_t>(fed.column(1).values) == Ints(good.size(), 2));
    for (const std::string_view bad : {"\xff", "on\xc3", "tw\xe4"}) {
        fed.feed({example(entry("one", "") + entry(bad, "") + wanted + empty)});
        CHECK(fed.fault() == Fault::malformed && fed.walk.records == 0);
    }
    CHECK(Fed(specs, {good[0], good[0]}, true).fault() == Fault::unknown_key);

    // More of them than are remembered, in an order that changes.
    std::vector<std::string> many;
    for (std::size_t record = 0; record < 4; ++record) {
        std::string entries;
        for (std::size_t i = 0; i < 1100; ++i) entries += entry(std::to_string((i + record) % 1100), "");
        many.push_back(example(entries + empty + wanted));
    }
    Fed again(specs, many);
    CHECK(again.whole() && items<std::int64_t>(again.column(0).values) == Ints(many.size(), 1));
    again.feed({example(entry("0", "") + entry("\xff", "") + wanted + empty)});
    CHECK(again.fault() == Fault::malformed);
}

Specs all_layouts() {
    return {spec("i", Kind::int64, ValueLayout::fixed, 2), text_spec("b", ValueLayout::fixed),
            spec("r", Kind::bytes, ValueLayout::raw, 4, 2), spec("f", Kind::floats, ValueLayout::ragged, 1),
            spec("t", Kind::bytes, ValueLayout::ragged, 1), spec("s", Kind::none, ValueLayout::skipped),
            spec("u", Kind::none, ValueLayout::unset)};
}

std::string all_features(std::int64_t number) {
    const std::string label = std::to_string(number);
    return entry("i", int64_list({number, -number})) + entry("b", bytes_list({label})) +
           entry("r", bytes_list({"abcd"})) + entry("f", number % 3 == 0 ? "" : float_list({1, 2})) +
           entry("t", bytes_list({label, "", "t"})) + entry("s", float_list({1})) + entry("u", "");
}

void blocks_cut_anywhere_give_the_same() {
    std::string bytes;
    std::vector<std::string> payloads;
    for (std::int64_t i = 0; i < 3; ++i) {
        payloads.push_back(example(all_features(i)));
        bytes += framed(payloads.back());
    }
    Fed whole(all_layouts(), payloads);
    CHECK(whole.whole());
    for (std::size_t step = 1; step < bytes.size(); step = step < 20 ? step + 1 : step + 37) {
        dtf::Decoder decoder(all_layouts(), true, true);
        std::string carried;
        std::uint64_t records = 0;
        for (std::size_t at = 0; at < bytes.size(); at += step) {
            carried += bytes.substr(at, step);
            const Exact block(carried);
            const dtf::Walk walk = decoder.feed(block.data(), block.size(), UINT64_MAX);
            CHECK(walk.stop == Stop::more && walk.consumed <= block.size() && walk.need > block.size() - walk.consumed);
            carried.erase(0, static_cast<std::size_t>(walk.consumed));
            records += walk.records;
        }
        CHECK(records == 3 && carried.empty() && contents(decoder) == contents(whole.decoder));
    }
}

void limits_stop_between_records() {
    dtf::Decoder decoder({spec("i", Kind::int64, ValueLayout::fixed)}, true, false);
    const std::string record = framed(example(entry("i", int64_list({4}))));
    const Exact block(record + record + record);
    dtf::Walk walk = decoder.feed(block.data(), block.size(), 0);
    CHECK(walk.stop == Stop::limit && walk.records == 0 && walk.consumed == 0);
    walk = decoder.feed(block.data(), block.size(), 2);
    CHECK(walk.stop == Stop::limit && walk.records == 2 && walk.consumed == 2 * record.size());
    CHECK(items<std::int64_t>(decoder.columns()[0].values) == Ints{4, 4});
}

void borrowed_memory_is_filled_exactly() {
    const Specs specs{spec("i", Kind::int64, ValueLayout::fixed, 2), spec("f", Kind::floats, ValueLayout::fixed),
                      spec("r", Kind::bytes, ValueLayout::raw, 4)};
    const std::string record = example(entry("i", int64_list({1, 2})) + entry("f", float_list({3})) +
                                       entry("r", bytes_list({"abcd"})));
    const std::string twice = example(entry("i", int64_list({9, 9, 9, 9})) + entry("r", bytes_list({"...."}))) + record;
    for (std::size_t short_of = 0; short_of < 3; ++short_of) {  // one column has place for one record less
        std::vector<Exact> memory;
        dtf::Decoder decoder(specs, true, false);
        for (std::size_t i = 0; i < 3; ++i) {
            dtf::Column& column = decoder.columns()[i];
            memory.emplace_back(std::string(column.slot() * (i == short_of ? 2 : 3), '\0'));
            column.values = dtf::Buffer(memory[i].data(), memory[i].size());
        }
        const Exact block(framed(record) + framed(twice) + framed(record));
        const dtf::Walk walk = decoder.feed(block.data(), block.size(), UINT64_MAX);
        CHECK(walk.records == 2 && walk.stop == Stop::feature);
        CHECK(decoder.problem().fault == Fault::full && decoder.problem().column == static_cast<int>(short_of));
        CHECK(items<std::int64_t>(decoder.columns()[0].values) == Ints{1, 2, 1, 2});
        CHECK(text(decoder.columns()[2].values) == "abcdabcd");
    }
}

// In every encoding, values beyond the count are counted, and not written past the end of a full buffer.
void too_many_values_are_counted_and_not_kept() {
    const std::string one_float = little_endian(1.0f), int_by_int = tag(1, 0) + varint(7),
                      float_by_float = tag(1, 5) + one_float;
    struct Case {
        dtf::ColumnSpec spec;
        std::string feature;
        std::uint64_t found;
    };
    const std::vector<Case> cases{
        {spec("k", Kind::int64, ValueLayout::fixed, 2), int64_list({1, 2, 3}), 3},
        {spec("k", Kind::int64, ValueLayout::fixed, 2), int64_list({1}) + int64_list({2, 3, 4}), 4},
        {spec("k", Kind::int64, ValueLayout::fixed, 2), delimited(3, int_by_int + int_by_int + int_by_int), 3},
        {spec("k", Kind::int64, ValueLayout::fixed, 2), delimited(3, int_by_int + delimited(1, std::string(99, '\1'))), 100},
        {spec("k", Kind::int64, ValueLayout::fixed, 2), int64_list({1, 2}) + delimited(3, int_by_int), 3},
        {spec("k", Kind::floats, ValueLayout::fixed, 2), float_list({1, 2, 3}), 3},
        {spec("k", Kind::floats, ValueLayout::fixed, 2), float_list({1}) + float_list({2, 3}), 3},
        {spec("k", Kind::floats, ValueLayout::fixed, 2), delimited(2, float_by_float + float_by_float + float_by_float), 3},
        {spec("k", Kind::bytes, ValueLayout::raw, 4), bytes_list({"abcd", "abcd", "ab"}), 3},
    };
    for (const Case& one : cases) {
        dtf::Decoder decoder({one.spec}, true, false);
        dtf::Column& column = decoder.columns()[0];
        Exact memory(std::string(column.slot(), '\0'));
        column.values = dtf::Buffer(memory.data(), memory.size());
        const Exact block(framed(example(entry("k", one.feature))));
        CHECK(decoder.feed(block.data(), block.size(), 1).stop == Stop::feature);
        CHECK(decoder.problem().fault == Fault::count && decoder.problem().found == one.found);
    }
}

// ---- what is refused

void every_fault() {
    struct Case {
        Fault fault;
        int column;
        std::uint64_t found;
        std::string payload;
    };
    const std::string good = all_features(1);
    const std::vector<Case> cases{
        {Fault::malformed, -1, 0, example(good) + "\x0a"},
        {Fault::malformed, -1, 0, example(good + "\x0a\x7f")},
        {Fault::malformed, -1, 0, example(good + entry("i", "\x1a\x05x"))},
        {Fault::malformed, -1, 0, example(good + entry("\xff", ""))},
        {Fault::malformed, -1, 0, example(good + delimited(1, delimited(1, "\xff") + delimited(1, "i")))},
        {Fault::malformed, -1, 0, example(good + entry("i", delimited(3, delimited(1, std::string(11, '\x80')))))},
        {Fault::malformed, -1, 0, example(good + entry("f", delimited(2, delimited(1, "12345"))))},
        {Fault::malformed, -1, 0, example(entry("i", delimited(2, delimited(1, "12345"))) + good)},
        {Fault::malformed, -1, 0, example(good + entry("u", delimited(2, delimited(1, "12345"))))},
        {Fault::not_example, -1, 0, example(good) + delimited(2, "")},
        {Fault::not_example, -1, 0, tag(2, 0) + varint(1)},
        {Fault::missing, 1, 0, example(entry("i", int64_list({1, 2})))},
        {Fault::missing, 1, 0, example(good + entry("b", ""))},
        {Fault::kind, 0, 2, example(good + entry("i", float_list({1, 2})))},
        {Fault::kind, 3, 1, example(good + entry("f", bytes_list({"a"})))},
        {Fault::kind, 6, 3, example(good + entry("u", int64_list({})))},
        {Fault::count, 0, 1, example(good + entry("i", int64_list({1})))},
        {Fault::count, 0, 3, example(good + entry("i", int64_list({1, 2, 3})))},
        {Fault::count, 0, 0, example(good + entry("i", int64_list({})))},
        {Fault::count, 1, 2, example(good + entry("b", bytes_list({"a", "b"})))},
        {Fault::count, 2, 2, example(good + entry("r", bytes_list({"abcd", "abcd"})))},
        {Fault::count, 2, 0, example(good + entry("r", bytes_list({})))},
        {Fault::size, 2, 3, example(good + entry("r", bytes_list({"abc"})))},
        {Fault::size, 2, 5, example(good + entry("r", bytes_list({"abcde"})))},
        {Fault::utf8, 1, 0, example(good + entry("b", bytes_list({"a\xff"})))},
        {Fault::unknown_key, -1, 0, example(good + entry("new", int64_list({1})))},
    };
    Fed clean(all_layouts(), {example(good), example(all_features(2))}, true);
    CHECK(clean.whole());
    for (const Case& one : cases) {
        Fed fed(all_layouts(), {example(good), one.payload, example(all_features(2))}, true);
        const dtf::Problem& problem = fed.decoder.problem();
        CHECK(fed.walk.stop == Stop::feature && fed.walk.records == 1);
        CHECK(fed.walk.consumed == framed(example(good)).size());
        CHECK(problem.fault == one.fault && problem.column == one.column && problem.found == one.found);
        CHECK(one.fault != Fault::unknown_key || problem.text == "new");
        // A refused record leaves no values behind: the decoder then holds the content of the other records.
        fed.feed({example(all_features(2))});
        CHECK(fed.whole() && contents(fed.decoder) == contents(clean.decoder));
    }
}

void an_empty_record_is_an_example_without_features() {
    CHECK(Fed({spec("i", Kind::int64, ValueLayout::ragged)}, {""}).whole());
    CHECK(Fed({spec("i", Kind::int64, ValueLayout::fixed)}, {""}).fault() == Fault::missing);
}

void booleans_are_zero_and_one() {
    const Specs specs{holding(dtf::Content::booleans, spec("r", Kind::bytes, ValueLayout::raw, 3))};
    Fed good(specs, {example(entry("r", bytes_list({std::string_view("\0\1\1", 3)})))});
    CHECK(good.whole());
    for (const int byte : {2, 128, 255}) {
        const std::string value{'\1', static_cast<char>(byte), '\0'};
        Fed bad(specs, {example(entry("r", bytes_list({value})))});
        CHECK(bad.fault() == Fault::boolean && bad.decoder.problem().found == static_cast<std::uint64_t>(byte));
    }
}

void text_is_checked_value_by_value() {
    // Halves of one character, each in a value of its own.
    const std::string record = example(entry("t", bytes_list({"a\xc3", "\xa4"})));
    CHECK(Fed({text_spec("t", ValueLayout::ragged)}, {record}).fault() == Fault::utf8);
    CHECK(Fed({text_spec("t", ValueLayout::fixed, 2)}, {record}).fault() == Fault::utf8);
    const std::string overridden = example(entry("t", bytes_list({"\xff"})) + entry("t", bytes_list({"\xc3\xa4"})));
    CHECK(Fed({text_spec("t", ValueLayout::fixed)}, {overridden}).whole());
}

void long_unknown_keys_are_cut_at_a_character() {
    for (std::size_t before = 990; before < 1010; ++before) {
        const std::string key = std::string(before, 'k') + "\xf0\x9f\x98\x80\xf0\x9f\x98\x80" + std::string(50, 'e');
        Fed fed({spec("i", Kind::int64, ValueLayout::ragged)}, {example(entry(key, ""))}, true);
        const std::string& shown = fed.decoder.problem().text;
        CHECK(fed.fault() == Fault::unknown_key && shown.size() > 990 && shown.size() <= 1000);
        CHECK(key.substr(0, shown.size()) == shown && dtf::is_utf8(bytes_of(shown), shown.size()));
    }
}

void unknown_groups_count_from_the_depth_of_their_message() {
    const std::string list = delimited(1, varint(5));
    const std::vector<std::function<std::string(const std::string&)>> places{
        [&](const std::string& group) { return group + example(entry("i", delimited(3, list))); },
        [&](const std::string& group) { return example(group + entry("i", delimited(3, list))); },
        [&](const std::string& group) {
            return example(delimited(1, group + delimited(1, "i") + delimited(2, delimited(3, list))));
        },
        [&](const std::string& group) { return example(entry("i", group + delimited(3, list))); },
        [&](const std::string& group) { return example(entry("i", delimited(3, group + list))); }};
    const Specs specs{spec("i", Kind::int64, ValueLayout::fixed)};
    for (std::size_t level = 0; level < places.size(); ++level) {
        CHECK(Fed(specs, {places[level](groups(100 - level))}).whole());
        CHECK(Fed(specs, {places[level](groups(101 - level))}).fault() == Fault::malformed);
    }
}

void huge_counts_allocate_no_memory() {
    const std::size_t huge = std::size_t{1} << 59;
    const std::string record = example(entry("i", int64_list({1})) + entry("r", bytes_list({"x"})));
    for (const ValueLayout layout : {ValueLayout::fixed, ValueLayout::ragged}) {
        Fed fed({spec("i", Kind::int64, layout, huge)}, {record});
        CHECK(fed.fault() == Fault::count && fed.decoder.problem().found == 1 && fed.column().values.size() == 0);
    }
    Fed raw({spec("r", Kind::bytes, ValueLayout::raw, huge)}, {record});
    CHECK(raw.fault() == Fault::size && raw.column().values.size() == 0);
    Fed none({spec("i", Kind::int64, ValueLayout::fixed, 0)}, {record});
    CHECK(none.fault() == Fault::count);
    Fed nothing({spec("i", Kind::int64, ValueLayout::fixed, 0)}, {example(entry("i", int64_list({})))});
    CHECK(nothing.whole() && nothing.walk.records == 1);
}

// Every cut and every flipped bit of a payload decodes or is refused, within its bounds.
void damaged_payloads_stay_within_bounds() {
    const std::string payload = example(all_features(5) + entry("i", int64_list({1, 1 << 20})));
    std::size_t refused = 0;
    const auto feed = [&](const std::string& mutilated) {
        Fed fed(all_layouts(), {mutilated, payload});
        refused += fed.fault() != Fault::none;
        CHECK(fed.whole() || fed.walk.stop == Stop::feature);
    };
    for (std::size_t cut = 0; cut < payload.size(); ++cut) feed(payload.substr(0, cut));
    for (std::size_t bit = 0; bit < 8 * payload.size(); ++bit) {
        std::string flipped = payload;
        flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
        feed(flipped);
    }
    CHECK(refused > payload.size());
}

const checks::Test tests[] = {
    TEST(crc_of_known_vectors),
    TEST(crc_versions_agree_on_every_length_and_offset),
    TEST(crc_dispatch_takes_the_fastest_version),
    TEST(varints_of_every_length),
    TEST(lengths_and_tags_keep_to_their_bounds),
    TEST(windows_of_varints_agree_with_one_by_one),
    TEST(varints_are_counted_as_they_are_read),
    TEST(utf8_of_every_sequence_of_three_bytes),
    TEST(utf8_of_four_bytes_at_the_edges),
    TEST(utf8_beside_runs_of_ascii),
    TEST(equal_spans_have_equal_bytes),
    TEST(fields_of_every_wire_type_are_skipped),
    TEST(groups_nest_as_deep_as_protobuf_allows),
    TEST(buffers_grow_and_keep_their_content),
    TEST(large_memory_keeps_its_content),
#if defined(DTF_HUGE_PAGES)
    TEST(freed_memory_is_used_again),
#endif
    TEST(buffers_reserve_the_expected_size),
    TEST(buffers_refuse_excessive_sizes),
    TEST(borrowed_memory_never_grows),
    TEST(offered_memory_is_left_when_it_is_full),
    TEST(varints_stay_in_offered_memory_as_long_as_they_fit),
    TEST(scans_stop_where_they_should),
    TEST(excessive_lengths_are_refused),
    TEST(framing_is_trusted_without_checks),
    TEST(payloads_and_footers_are_checked),
    TEST(fixed_columns),
    TEST(ragged_columns),
    TEST(raw_columns),
    TEST(one_message_in_many_encodings),
    TEST(overridden_values_leave_no_output),
    TEST(keys_in_any_order_find_their_columns),
    TEST(keys_of_no_column_are_checked_everywhere),
    TEST(blocks_cut_anywhere_give_the_same),
    TEST(limits_stop_between_records),
    TEST(borrowed_memory_is_filled_exactly),
    TEST(too_many_values_are_counted_and_not_kept),
    TEST(every_fault),
    TEST(an_empty_record_is_an_example_without_features),
    TEST(booleans_are_zero_and_one),
    TEST(text_is_checked_value_by_value),
    TEST(long_unknown_keys_are_cut_at_a_character),
    TEST(unknown_groups_count_from_the_depth_of_their_message),
    TEST(huge_counts_allocate_no_memory),
    TEST(damaged_payloads_stay_within_bounds),
};

}  // namespace

int main() {
    std::printf("CRC by %s\n", crc_versions().back().first);
    return checks::run(tests);
}
