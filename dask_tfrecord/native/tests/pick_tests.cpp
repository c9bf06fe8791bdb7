// Tests of records selected by number: decoded as if fed one at a time, with only headers read between them.
#include "checks.hpp"
#include "fed.hpp"

#include <stdexcept>

namespace {

using namespace support;
using dtf::Fault;
using dtf::Kind;
using dtf::ValueLayout;
using dtf::Stop;
using Numbers = std::vector<std::int64_t>;

Specs columns() {
    return {spec("i", Kind::int64, ValueLayout::fixed), text_spec("t", ValueLayout::ragged),
            spec("f", Kind::floats, ValueLayout::ragged)};
}

// Of another size each, the first one without a byte of text.
std::string payload(std::int64_t number) {
    const std::string label(static_cast<std::size_t>(7 * number), 't');
    return example(entry("i", int64_list({number})) + entry("t", bytes_list({label})) +
                   entry("f", number % 2 == 0 ? "" : float_list({1, 2})));
}

struct Records {
    std::vector<std::string> payloads;
    std::string bytes;
    std::vector<std::uint64_t> ends{0};

    explicit Records(std::int64_t count) {
        for (std::int64_t number = 0; number < count; ++number) {
            payloads.push_back(payload(number));
            bytes += framed(payloads.back());
            ends.push_back(bytes.size());
        }
    }
    // Content of a decoder after these records only.
    std::string contents_of(const Numbers& wanted) const {
        std::vector<std::string> some;
        for (const std::int64_t number : wanted) some.push_back(payloads[static_cast<std::size_t>(number)]);
        Fed fed(columns(), some);
        return contents(fed.decoder);
    }
};

dtf::Walk pick(dtf::Decoder& decoder, std::string_view bytes, const Numbers& wanted, std::uint64_t first = 0) {
    const Exact block(bytes);
    return decoder.feed_selected(block.data(), block.size(), first, wanted.data(), wanted.size());
}

Numbers numbers_of(unsigned mask) {
    Numbers wanted;
    for (int number = 0; mask >> number != 0; ++number) {
        if (mask >> number & 1) wanted.push_back(number);
    }
    return wanted;
}

void picked_records_are_decoded_as_if_alone() {
    const Records records(7);
    for (unsigned mask = 0; mask < 1u << 7; ++mask) {
        const Numbers wanted = numbers_of(mask);
        for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{1} << 40}) {
            Numbers numbered = wanted;
            for (std::int64_t& number : numbered) number += static_cast<std::int64_t>(first);
            dtf::Decoder decoder(columns(), true, false);
            const dtf::Walk walk = pick(decoder, records.bytes, numbered, first);
            const std::size_t passed = wanted.empty() ? 0 : static_cast<std::size_t>(wanted.back()) + 1;
            CHECK(walk.stop == Stop::limit && walk.records == passed && walk.consumed == records.ends[passed]);
            CHECK(contents(decoder) == records.contents_of(wanted));
        }
    }
}

void blocks_cut_anywhere_give_the_same() {
    const Records records(6);
    for (const Numbers& wanted : {Numbers{0, 5}, Numbers{4}, Numbers{1, 2, 5}}) {
        for (std::size_t step = 1; step < records.bytes.size(); step = step < 20 ? step + 1 : step + 37) {
            dtf::Decoder decoder(columns(), true, false);
            std::size_t begin = 0, end = 0;
            Numbers left = wanted;
            for (std::uint64_t first = 0; !left.empty() && end < records.bytes.size();) {
                // Bytes after a skipped record may already be consumed.
                end = std::min(records.bytes.size(), std::max(begin, end) + step);
                const std::string block = records.bytes.substr(begin, end - begin);
                const dtf::Walk walk = pick(decoder, block, left, first);
                begin += static_cast<std::size_t>(walk.consumed);
                first += walk.records;
                CHECK(walk.stop == Stop::limit || (walk.stop == Stop::more && walk.need > 0));
                CHECK(begin == records.ends[static_cast<std::size_t>(first)]);
                CHECK(walk.stop == Stop::limit || walk.consumed >= block.size() ||
                      walk.need > block.size() - walk.consumed);
                while (!left.empty() && left.front() < static_cast<std::int64_t>(first)) left.erase(left.begin());
            }
            CHECK(left.empty() && contents(decoder) == records.contents_of(wanted));
        }
    }
}

void skipped_records_may_exceed_the_block() {
    const Records records(3);
    for (std::size_t cut = 12; cut <= records.ends[1]; ++cut) {
        dtf::Decoder decoder(columns(), true, false);
        const dtf::Walk walk = pick(decoder, std::string_view(records.bytes).substr(0, cut), {1});
        CHECK(walk.stop == Stop::more && walk.records == 1 && walk.consumed == records.ends[1] && walk.need == 12);
    }
}

void only_headers_of_skipped_records_are_read() {
    const Records records(4);
    for (std::size_t at = static_cast<std::size_t>(records.ends[1]); at < records.ends[2]; ++at) {
        std::string torn = records.bytes;
        torn[at] = static_cast<char>(torn[at] ^ 1);
        const bool header = at < records.ends[1] + 12;
        dtf::Decoder decoder(columns(), true, false);
        const dtf::Walk walk = pick(decoder, torn, {0, 3});
        CHECK(walk.stop == (header ? Stop::framing : Stop::limit) && walk.records == (header ? 1 : 4));
        CHECK(walk.consumed == records.ends[header ? 1 : 4]);
        CHECK(contents(decoder) == records.contents_of(header ? Numbers{0} : Numbers{0, 3}));
        // It is checked where it is picked.
        dtf::Decoder strict(columns(), true, false);
        const dtf::Walk refused = pick(strict, torn, {0, 1});
        CHECK(refused.stop == Stop::framing && refused.records == 1 && refused.consumed == records.ends[1]);
    }
    std::string torn = records.bytes;
    for (std::size_t i = 8; i < 12; ++i) torn[static_cast<std::size_t>(records.ends[1]) + i] = '!';
    dtf::Decoder trusting(columns(), false, false);
    CHECK(pick(trusting, torn, {0, 1, 3}).stop == Stop::limit);
    CHECK(contents(trusting) == records.contents_of({0, 1, 3}));
}

void the_walk_stops_at_a_refused_record() {
    const Records records(2);
    const std::string wrong = framed(example(entry("i", float_list({1}))));
    const std::string bytes = records.bytes + wrong + framed(payload(3));
    dtf::Decoder decoder(columns(), true, false);
    dtf::Walk walk = pick(decoder, bytes, {1, 2, 3});
    CHECK(walk.stop == Stop::feature && walk.records == 2 && walk.consumed == records.bytes.size());
    CHECK(decoder.problem().fault == Fault::kind && contents(decoder) == records.contents_of({1}));
    // The payload of a skipped record is not validated.
    dtf::Decoder passing(columns(), true, false);
    walk = pick(passing, bytes, {1, 3});
    CHECK(walk.stop == Stop::limit && walk.records == 4 && walk.consumed == bytes.size());
}

void excessive_lengths_are_refused() {
    const std::string length = little_endian(std::uint64_t{1} << 63);
    const std::string bytes = framed(payload(0)) + length + little_endian(masked(length)) + "payload";
    for (const std::int64_t number : {1, 2}) {
        dtf::Decoder decoder(columns(), true, false);
        const dtf::Walk walk = pick(decoder, bytes, {number});
        CHECK(walk.stop == Stop::more && walk.records == 1 && walk.need == UINT64_MAX);
    }
    // As long as a length may be: the next header lies far beyond the block.
    const std::string longest = little_endian(dtf::absurd_length);
    dtf::Decoder decoder(columns(), true, false);
    const dtf::Walk walk = pick(decoder, longest + little_endian(masked(longest)), {1});
    CHECK(walk.stop == Stop::more && walk.records == 1 && walk.consumed == dtf::absurd_length + 16 && walk.need == 12);
}

void numbers_ascend() {
    const Records records(4);
    for (const Numbers& wanted : {Numbers{1, 1}, Numbers{2, 1}, Numbers{-1}, Numbers{0, -3}}) {
        dtf::Decoder decoder(columns(), true, false);
        bool thrown = false;
        try {
            pick(decoder, records.bytes, wanted);
        } catch (const std::invalid_argument&) {
            thrown = true;
        }
        CHECK(thrown);
    }
    dtf::Decoder decoder(columns(), true, false);
    CHECK(pick(decoder, records.bytes, {3, 9}, 3).stop == Stop::more);
}

const checks::Test tests[] = {
    TEST(picked_records_are_decoded_as_if_alone),
    TEST(blocks_cut_anywhere_give_the_same),
    TEST(skipped_records_may_exceed_the_block),
    TEST(only_headers_of_skipped_records_are_read),
    TEST(the_walk_stops_at_a_refused_record),
    TEST(excessive_lengths_are_refused),
    TEST(numbers_ascend),
};

}  // namespace

int main() { return checks::run(tests); }
