// Tests of the search for intact records in a damaged stream, run under sanitizers.
#include "checks.hpp"
#include "support.hpp"

#include <functional>

#include "resync.hpp"

namespace {

using namespace support;
using dtf::Resync;
using dtf::Stretch;

using Found = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // stretches: start, end

Resync looked_at(const std::string& stream, bool boundary = true, std::size_t piece = SIZE_MAX) {
    Resync resync(0, stream.size(), boundary);
    std::size_t at = 0, end = 0;
    while (end < stream.size() || end == 0) {
        end += std::min(piece, stream.size() - end);
        const Exact block(std::string_view(stream).substr(at, end - at));
        at += resync.feed(block.data(), block.size(), end == stream.size());
        if (stream.empty()) break;
    }
    CHECK(resync.position() == stream.size());
    return resync;
}

Found stretches(const Resync& resync) {
    Found found;
    for (const Stretch& stretch : resync.stretches()) found.emplace_back(stretch.start, stretch.end);
    return found;
}

std::string noise(std::size_t size, Random& random) {
    std::string bytes;
    for (std::size_t i = 0; i < size; ++i) bytes += static_cast<char>(random.next());
    return bytes;
}

// An intact header with any length.
std::string header(std::uint64_t length) {
    const std::string bytes = little_endian(length);
    return bytes + little_endian(masked(bytes));
}

void zero_bytes_forward_and_backward() {
    const dtf::Zeros zeros;
    const dtf::Backwards backwards;
    const std::string zero(5000, '\0');
    Random random(1);
    for (std::size_t count : {0u, 1u, 2u, 7u, 8u, 255u, 256u, 4999u}) {
        const std::uint32_t state = static_cast<std::uint32_t>(random.next());
        const std::uint32_t after = dtf::crc::advance_by_tables(state, bytes_of(zero), count);
        CHECK(zeros.forward(state, count) == after);
        CHECK(zeros.backward(after, count) == state);
    }
    const std::string bytes = noise(100, random);
    std::uint32_t state = 0x12345678;
    for (const char byte : bytes) {
        const std::uint32_t after = dtf::crc::advance_by_tables(state, bytes_of({&byte, 1}), 1);
        CHECK(backwards(after, static_cast<std::uint8_t>(byte)) == state);
        state = after;
    }
    // Further than any table goes: there and back.
    CHECK(zeros.backward(zeros.forward(state, std::uint64_t{1} << 50), std::uint64_t{1} << 50) == state);
    CHECK(dtf::crc::unmask(dtf::crc::mask(state)) == state);
}

void intact_records_are_one_span() {
    std::string stream;
    for (const char* payload : {"", "a", "some bytes", ""}) stream += framed(payload);
    const Resync resync = looked_at(stream);
    CHECK(stretches(resync) == Found{{0, stream.size()}});
    CHECK(resync.stretches()[0].records == 4);
    CHECK(stretches(looked_at("")) == Found{{0, 0}});
    CHECK(stretches(looked_at("", false)).empty());
}

void lost_records_are_counted_from_headers_or_payloads() {
    const std::string a = framed("first"), b = framed("the second one"), c = framed("third");
    std::string stream = a + b + c;
    stream[a.size() + 3] ^= 1;  // damaged header: the payload identifies it
    Resync resync = looked_at(stream);
    CHECK(stretches(resync) == Found{{0, a.size()}, {a.size() + b.size(), stream.size()}});
    CHECK(resync.stretches()[1].root == a.size() && resync.stretches()[1].lost == 1 && resync.stretches()[1].sealed);
    stream = a + b + c;
    stream[a.size() + 15] ^= 1;  // damaged payload: the header identifies it
    resync = looked_at(stream);
    CHECK(resync.stretches()[1].root == a.size() && resync.stretches()[1].lost == 1 && !resync.stretches()[1].sealed);
    CHECK(resync.stretches()[0].header_end == a.size() + b.size());
    stream[a.size() + 3] ^= 1;  // both: nothing does
    resync = looked_at(stream);
    CHECK(stretches(resync) == Found{{0, a.size()}, {a.size() + b.size(), stream.size()}});
    CHECK(resync.stretches()[1].root == dtf::nowhere);
    stream = a + b;
    stream[a.size() + 3] ^= 1;  // the last one
    resync = looked_at(stream);
    CHECK(resync.tail_root() == a.size() && resync.tail_lost() == 1);
}

void records_within_an_intact_record_are_ignored() {
    const std::string inner = framed("deep") + framed("deeper");
    const std::string outer = framed(inner) + framed("x" + framed(inner) + "y");
    const Resync resync = looked_at(noise(100, *std::make_unique<Random>(2)) + outer);
    CHECK(stretches(resync) == Found{{0, 0}, {100, 100 + outer.size()}});
}

void a_span_within_a_payload_is_recognized() {
    const std::string inner = framed("one") + framed("two");
    std::string record = framed(inner);
    record[3] ^= 1;
    record[2] ^= 1;
    const std::string stream = noise(70, *std::make_unique<Random>(3)) + record + "behind everything";
    const Resync resync = looked_at(stream);
    CHECK(stretches(resync) == Found{{0, 0}, {82, 82 + inner.size()}});
    CHECK(resync.stretches()[1].payload);
}

// Reference implementation by exhaustive search: starts and ends of intact records.
Found all_that_hold(const std::string& stream) {
    Found found;
    for (std::size_t at = 0; at + 16 <= stream.size(); ++at) {
        const std::string_view rest = std::string_view(stream).substr(at);
        const std::uint64_t length = dtf::load<std::uint64_t>(bytes_of(rest));
        if (masked(rest.substr(0, 8)) != dtf::load<std::uint32_t>(bytes_of(rest) + 8)) continue;
        if (length > rest.size() - 16) continue;
        const std::string_view payload = rest.substr(12, length);
        if (masked(payload) != dtf::load<std::uint32_t>(bytes_of(rest) + 12 + length)) continue;
        found.emplace_back(at, at + 16 + length);
    }
    return found;
}

std::string hostile(Random& random) {
    std::string stream;
    for (std::size_t parts = 1 + random.below(12); parts > 0; --parts) {
        const std::string payload = noise(random.below(30), random);
        switch (random.below(8)) {
            case 0: stream += payload; break;
            case 1: stream += header(random.below(300)); break;
            case 2: stream += header(random.next() >> random.below(64)); break;
            case 3: stream += framed(stream.substr(0, 400)); break;
            case 4: stream += framed("a" + framed(payload) + framed("") + payload); break;
            default: stream += framed(payload); break;
        }
    }
    for (std::size_t changes = random.below(4); changes > 0 && !stream.empty(); --changes) {
        const std::size_t at = random.below(stream.size());
        switch (random.below(4)) {
            case 0: stream.insert(at, noise(1 + random.below(40), random)); break;
            case 1: stream.erase(at, 1 + random.below(40)); break;
            default: stream[at] = static_cast<char>(stream[at] ^ (1 << random.below(8))); break;
        }
    }
    return stream;
}

void spans_hold_only_intact_records() {
    Random random(4);
    for (int turn = 0; turn < 4000; ++turn) {
        const std::string stream = hostile(random);
        const bool boundary = random.below(2) == 0;
        const Resync resync = looked_at(stream, boundary);
        const Found records = all_that_hold(stream);
        std::uint64_t before = 0;
        for (const Stretch& stretch : resync.stretches()) {
            CHECK(stretch.start >= before && stretch.end <= stream.size());
            std::uint64_t at = stretch.start;
            for (std::uint64_t count = 0; count < stretch.records; ++count) {
                const auto record = std::find_if(records.begin(), records.end(),
                                                 [&](const auto& each) { return each.first == at; });
                CHECK(record != records.end());
                if (record == records.end()) return;
                at = record->second;
            }
            CHECK(at == stretch.end);
            CHECK(stretch.root == dtf::nowhere || (stretch.lost > 0 && stretch.root <= stretch.start));
            before = stretch.end;
        }
        if (checks::failures > 0) return;
    }
}

void windows_cut_anywhere_give_the_same() {
    Random random(5);
    for (int turn = 0; turn < 1500; ++turn) {
        const std::string stream = hostile(random);
        const Resync whole = looked_at(stream);
        const Resync pieces = looked_at(stream, true, 12 + random.below(50));
        CHECK(stretches(whole) == stretches(pieces));
        CHECK(whole.tail_root() == pieces.tail_root() && whole.tail_lost() == pieces.tail_lost());
        CHECK(whole.bytes_read() == pieces.bytes_read());
        for (std::size_t i = 0; i < whole.stretches().size() && i < pieces.stretches().size(); ++i) {
            const Stretch &one = whole.stretches()[i], &other = pieces.stretches()[i];
            CHECK(one.root == other.root && one.lost == other.lost && one.sealed == other.sealed);
            CHECK(one.header_end == other.header_end && one.reach == other.reach && one.payload == other.payload);
        }
        if (checks::failures > 0) return;
    }
}

// Streams that take quadratic time if each intact header is checked separately.
std::string repeated(std::size_t size, const std::function<std::string(std::size_t)>& part) {
    std::string stream = "no header";
    while (stream.size() < size) stream += part(stream.size());
    return stream;
}

void work_and_memory_grow_with_the_bytes_alone() {
    constexpr std::size_t size = 1 << 20;
    const std::function<std::string(std::size_t)> parts[] = {
        [](std::size_t at) { return header(size - at); },                              // far too long
        [](std::size_t at) { return at < size / 2 ? header(size - at - 400) : "x"; },  // to the end, all of them
        [](std::size_t at) { return header(at % 100); },
        [](std::size_t) { return framed("abc") + "z"; },
        [](std::size_t) { return framed("abc") + header(1 << 16); },
        [](std::size_t) { return framed(framed(framed("abc"))) + std::string(70, 'q'); },
        [](std::size_t) { return std::string(1000, '\0'); },
        [](std::size_t) { return std::string(1000, '\xff'); },
    };
    for (const auto& part : parts) {
        const std::string stream = repeated(size, part);
        Resync resync(0, stream.size(), true);
        std::size_t most = 0, at = 0;
        while (at < stream.size()) {
            const std::size_t end = std::min(at + 5000, stream.size());
            at += resync.feed(bytes_of(stream) + at, end - at, end == stream.size());
            most = std::max(most, resync.waiting());
        }
        CHECK(resync.bytes_read() <= 30 * stream.size());
        CHECK(most <= Resync::most_waiting);
    }
}

void a_stream_that_ends_early() {
    const std::string stream = framed("abc") + framed("a record that is cut");
    for (std::size_t size = 0; size <= stream.size(); ++size) {
        Resync resync(0, dtf::nowhere, true);
        const Exact block(std::string_view(stream).substr(0, size));
        CHECK(resync.feed(block.data(), block.size(), true) == size);
        CHECK(resync.stretches().size() == 1);
        CHECK(resync.stretches()[0].records == (size == stream.size() ? 2 : size >= 19 ? 1 : 0));
    }
}

const checks::Test tests[] = {
    TEST(zero_bytes_forward_and_backward),
    TEST(intact_records_are_one_span),
    TEST(lost_records_are_counted_from_headers_or_payloads),
    TEST(records_within_an_intact_record_are_ignored),
    TEST(a_span_within_a_payload_is_recognized),
    TEST(spans_hold_only_intact_records),
    TEST(windows_cut_anywhere_give_the_same),
    TEST(work_and_memory_grow_with_the_bytes_alone),
    TEST(a_stream_that_ends_early),
};

}  // namespace

int main() { return checks::run(tests); }
