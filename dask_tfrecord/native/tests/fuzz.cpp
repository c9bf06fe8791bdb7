// native_fuzz SECONDS SEED[:FIRST] FILE...: mutated records of real files through the native core, under sanitizers.
//
// Every execution follows from the seed and its number alone: a failure names both, and SEED:NUMBER starts there.
#include "fuzzing.hpp"
#include "tensor_fuzz.hpp"

#include <chrono>
#include <fstream>
#include <functional>
#include <optional>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace {

using namespace fuzzing;
using namespace support;
using dtf::Kind;
using dtf::Layout;
using dtf::Stop;
using Specs = std::vector<dtf::ColumnSpec>;

// ---- the corpus

struct Seen {  // a feature as a record of the corpus has it
    std::string key;
    Kind kind;
    std::size_t count;
    std::size_t size;  // of its first value, where that is bytes
};

struct Sample {
    std::string bytes;  // the file
    std::vector<std::string> payloads;
    std::vector<Seen> features;
};

// Whole records from the start of a file, as far as they hold.
std::vector<std::string> read_payloads(const std::string& bytes) {
    std::vector<std::string> payloads;
    for (std::size_t at = 0; bytes.size() - at >= 16;) {
        const std::size_t length = dtf::load<std::uint64_t>(bytes_of(bytes) + at);
        const std::string head = bytes.substr(at, 8);
        if (masked(head) != dtf::load<std::uint32_t>(bytes_of(bytes) + at + 8)) break;
        if (length > bytes.size() - at - 16) break;
        payloads.push_back(bytes.substr(at + 12, length));
        at += 16 + length;
    }
    return payloads;
}

// The decoder itself says what a record holds: a closed one names a key that it lacks, a ragged column counts.
std::vector<Seen> read_features(const std::string& payload) {
    const Exact block(framed(payload));
    Specs known;
    std::vector<Seen> features;
    for (;;) {
        dtf::Decoder decoder(known, true, true);
        const dtf::Walk walk = decoder.feed(block.data(), block.size(), 1);
        if (walk.stop != Stop::feature || decoder.problem().fault != dtf::Fault::unknown_key) break;
        known.push_back(spec(decoder.problem().text, Kind::none, Layout::skipped));
        if (known.size() > 200) break;
    }
    for (const dtf::ColumnSpec& column : known) {
        for (const Kind kind : {Kind::bytes, Kind::floats, Kind::int64}) {
            dtf::Decoder decoder({spec(column.key, kind, Layout::ragged)}, true, false);
            if (decoder.feed(block.data(), block.size(), 1).records != 1) continue;
            dtf::Column& found = decoder.columns()[0];
            const auto count = static_cast<std::size_t>(found.row_splits.at<std::int64_t>(1));
            const bool sized = kind == Kind::bytes && count > 0;
            const std::int64_t size = sized ? found.value_splits.at<std::int64_t>(1) : 0;
            features.push_back({column.key, kind, count, static_cast<std::size_t>(size)});
            break;
        }
    }
    return features;
}

std::vector<Sample> read_corpus(char** begin, char** end) {
    std::vector<Sample> corpus;
    for (char** name = begin; name != end; ++name) {
        std::ifstream file(*name, std::ios::binary);
        Sample sample;
        sample.bytes.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
        sample.payloads = read_payloads(sample.bytes);
        if (sample.payloads.empty()) continue;
        for (const std::size_t which : {std::size_t{0}, sample.payloads.size() / 2, sample.payloads.size() - 1}) {
            for (Seen& seen : read_features(sample.payloads[which])) sample.features.push_back(std::move(seen));
        }
        corpus.push_back(std::move(sample));
    }
    return corpus;
}

// ---- mutations

const std::string& any_payload(const Sample& sample, Random& random) {
    return sample.payloads[random.below(sample.payloads.size())];
}

// Records of one file, and a few of another, mutated and framed as if they were whole.
std::string mutated_records(const Sample& sample, const Sample& other, Random& random) {
    std::string block;
    for (std::size_t n = 1 + random.below(6); n > 0 && block.size() < 40000; --n) {
        std::string payload = any_payload(random.below(8) == 0 ? other : sample, random);
        for (std::size_t k = random.below(2) == 0 ? 0 : 1 + random.below(4); k > 0; --k) {
            mutate(payload, any_payload(random.below(4) == 0 ? other : sample, random), random);
        }
        if (random.below(10) == 0) payload += any_payload(sample, random);  // to protobuf, messages merge
        block += framed(payload);
    }
    return block;
}

// A stretch of a real file whose framing is mutated too.
std::string mutated_block(const Sample& sample, const Sample& other, Random& random) {
    std::string block;
    for (std::size_t n = 1 + random.below(6); n > 0 && block.size() < 40000; --n) {
        block += framed(any_payload(sample, random));
    }
    if (random.below(3) == 0) block = sample.bytes.substr(0, 40000);
    for (std::size_t k = 1 + random.below(3); k > 0; --k) {
        if (random.below(3) == 0) {  // a header that holds, and lies
            const std::uint64_t lengths[] = {
                0, 1, block.size(), block.size() * 2, std::uint64_t{1} << 31, dtf::absurd_length,
                dtf::absurd_length + 1, std::uint64_t{1} << 63, UINT64_MAX};
            const std::string length = little_endian(lengths[random.below(std::size(lengths))]);
            const std::size_t at = random.below(2) == 0 ? 0 : random.below(block.size() + 1);
            block.insert(at, length + little_endian(masked(length)));
        } else {
            mutate(block, other.bytes.size() < 40000 ? other.bytes : any_payload(other, random), random);
        }
    }
    return block;
}

// ---- columns

dtf::ColumnSpec column_for(const Seen& seen, Random& random) {
    const std::size_t each = seen.kind == Kind::bytes ? 1 : 1 + random.below(3);
    switch (random.below(10)) {
        case 0: return spec(seen.key, Kind::none, Layout::skipped);
        case 1: return spec(seen.key, Kind::none, Layout::unset);
        case 2: return spec(seen.key, static_cast<Kind>(1 + random.below(3)), Layout::fixed, random.below(5));
        case 3: return spec(seen.key, static_cast<Kind>(1 + random.below(3)), Layout::ragged, 1 + random.below(3));
        case 4:
        case 5: return spec(seen.key, seen.kind, Layout::ragged, each);
        default: break;
    }
    const std::size_t located = seen.kind == Kind::floats ? seen.count : seen.kind == Kind::bytes ? seen.size : 0;
    if (located > 0 && random.below(4) == 0) {
        const bool boolean = seen.kind == Kind::bytes && random.below(4) == 0;
        return spec(seen.key, seen.kind, Layout::located, located, 1, false, boolean);
    }
    if (seen.kind != Kind::bytes || random.below(3) == 0) return spec(seen.key, seen.kind, Layout::fixed, seen.count);
    if (random.below(2) == 0) {
        const bool fixed = random.below(2) == 0;
        return spec(seen.key, Kind::bytes, fixed ? Layout::fixed : Layout::ragged, fixed ? seen.count : 1, 1, true);
    }
    std::size_t swap = std::size_t{1} << random.below(4);
    if (seen.size % swap != 0) swap = 1;
    return spec(seen.key, Kind::bytes, Layout::raw, seen.size, swap, false, random.below(4) == 0);
}

Specs some_columns(const Sample& sample, Random& random) {
    Specs specs;
    for (const Seen& seen : sample.features) {
        const auto same_key = [&](const dtf::ColumnSpec& one) { return one.key == seen.key; };
        const bool there = std::any_of(specs.begin(), specs.end(), same_key);
        if (!there && random.below(5) != 0) specs.push_back(column_for(seen, random));
    }
    return specs;
}

// Columns of which only the place is wanted, and the same columns as they are read.
std::pair<Specs, Specs> places_and_values(const Sample& sample, Random& random) {
    std::pair<Specs, Specs> both;
    for (const dtf::ColumnSpec& one : some_columns(sample, random)) {
        if (one.layout != Layout::located) continue;
        both.first.push_back(one);
        both.second.push_back(one);
        both.second.back().layout = one.kind == Kind::bytes ? Layout::raw : Layout::fixed;
    }
    return both;
}

// ---- what has to hold

std::string_view view_of(const Exact& block, std::size_t at, std::size_t size) {
    return std::string_view(reinterpret_cast<const char*>(block.data()), block.size()).substr(at, size);
}

bool crc_holds(std::string_view bytes, std::string_view stored) {
    return masked(bytes) == dtf::load<std::uint32_t>(bytes_of(stored));
}

// Bytes of `records` whole records; their CRCs hold where they are checked.
std::size_t span_of(const Exact& block, std::uint64_t records, bool check) {
    std::size_t at = 0;
    for (; records > 0; --records) {
        REQUIRE(block.size() - at >= 16);
        const std::uint64_t length = dtf::load<std::uint64_t>(block.data() + at);
        REQUIRE(length <= block.size() - at - 16);
        const auto size = static_cast<std::size_t>(length);
        REQUIRE(!check || crc_holds(view_of(block, at, 8), view_of(block, at + 8, 4)));
        REQUIRE(!check || crc_holds(view_of(block, at + 12, size), view_of(block, at + 12 + size, 4)));
        at += 16 + size;
    }
    return at;
}

void check_walk(const dtf::Decoder& decoder, const dtf::Walk& walk, const Exact& block, std::uint64_t limit,
                bool check) {
    REQUIRE(walk.records <= limit && walk.consumed <= block.size());
    const std::size_t at = span_of(block, walk.records, check);
    const std::size_t left = block.size() - at;
    REQUIRE(walk.consumed == at);
    if (walk.stop == Stop::limit) REQUIRE(walk.records == limit);
    if (walk.stop == Stop::more) REQUIRE(walk.need > left);
    if (walk.stop == Stop::feature) {
        REQUIRE(span_of(block, walk.records + 1, check) > at);
        REQUIRE(decoder.problem().fault != dtf::Fault::none);
    }
    if (walk.stop != Stop::framing) return;
    REQUIRE(check && left >= 12);
    if (!crc_holds(view_of(block, at, 8), view_of(block, at + 8, 4))) return;
    const auto length = static_cast<std::size_t>(dtf::load<std::uint64_t>(block.data() + at));
    REQUIRE(left >= 16 && length <= left - 16);
    REQUIRE(!crc_holds(view_of(block, at + 12, length), view_of(block, at + 12 + length, 4)));
}

void check_splits(dtf::Buffer& splits, std::uint64_t last) {
    const std::vector<std::int64_t> ends = items<std::int64_t>(splits);
    REQUIRE(!ends.empty() && ends.front() == 0 && std::is_sorted(ends.begin(), ends.end()));
    REQUIRE(static_cast<std::uint64_t>(ends.back()) == last);
}

void check_column(dtf::Column& column, std::uint64_t records) {
    const dtf::ColumnSpec& spec = column.spec();
    std::uint64_t values = 0;
    if (column.stores_bytes()) {
        check_splits(column.value_splits, column.values.size());
        values = column.value_splits.size() / 8 - 1;
    } else if (spec.layout == Layout::skipped || spec.layout == Layout::unset) {
        REQUIRE(column.values.size() == 0);
    } else if (spec.layout == Layout::located) {
        REQUIRE(column.values.size() == records * sizeof(std::int64_t));
        return;
    } else {
        const std::size_t each = spec.kind == Kind::int64 ? 8 : spec.kind == Kind::floats ? 4 : spec.count;
        REQUIRE(each == 0 || column.values.size() % each == 0);
        values = spec.layout == Layout::raw ? records : column.values.size() / each;
        if (spec.layout == Layout::raw) REQUIRE(column.values.size() == records * each);
    }
    if (spec.layout == Layout::fixed) REQUIRE(values == records * spec.count);
    if (spec.layout == Layout::ragged) {
        check_splits(column.row_splits, values);
        REQUIRE(column.row_splits.size() == 8 * (records + 1));
        for (const std::int64_t end : items<std::int64_t>(column.row_splits)) {
            REQUIRE(static_cast<std::uint64_t>(end) % spec.count == 0);
        }
    }
    for (const char byte : spec.boolean ? text(column.values) : std::string()) REQUIRE(byte == 0 || byte == 1);
    if (!spec.text) return;
    const std::vector<std::int64_t> ends = items<std::int64_t>(column.value_splits);
    for (std::size_t i = 1; i < ends.size(); ++i) {
        const auto begin = static_cast<std::size_t>(ends[i - 1]);
        REQUIRE(dtf::is_utf8(column.values.data() + begin, static_cast<std::size_t>(ends[i]) - begin));
    }
}

// What came of a block: all that was decoded and, as text, all that was said on the way.
struct Outcome {
    std::uint64_t records = 0;
    std::string said;
    std::string columns;
};

void note(Outcome& outcome, const dtf::Problem& problem) {
    for (const std::uint64_t part : {outcome.records, static_cast<std::uint64_t>(problem.fault),
                                     static_cast<std::uint64_t>(problem.column), problem.found}) {
        outcome.said += std::to_string(part) + ' ';
    }
    if (problem.fault == dtf::Fault::unknown_key) outcome.said += problem.text;
}

// Feeds a block in pieces, each with what was left of the one before; goes on after records that are refused.
Outcome run(dtf::Decoder& decoder, const std::string& bytes, bool check, const std::function<std::size_t()>& piece,
            const std::function<std::uint64_t()>& limit) {
    Outcome outcome;
    std::size_t begin = 0, end = 0;
    for (bool framing = false; !framing;) {
        const Exact block(std::string_view(bytes).substr(begin, end - begin));
        const std::uint64_t most = limit();
        const dtf::Walk walk = decoder.feed(block.data(), block.size(), most, begin);
        check_walk(decoder, walk, block, most, check);
        outcome.records += walk.records;
        if (most != UINT64_MAX) decoder.expect(static_cast<double>(most));
        begin += static_cast<std::size_t>(walk.consumed);
        if (walk.stop == Stop::feature) {
            note(outcome, decoder.problem());
            begin += 16 + static_cast<std::size_t>(dtf::load<std::uint64_t>(bytes_of(bytes) + begin));
        } else if (walk.stop == Stop::more) {
            if (end == bytes.size()) break;
            end = std::min(bytes.size(), end + piece());
        }
        framing = walk.stop == Stop::framing;
    }
    outcome.said += "stopped at " + std::to_string(begin);
    for (dtf::Column& column : decoder.columns()) {
        check_column(column, outcome.records);
        for (dtf::Buffer* buffer : {&column.values, &column.value_splits, &column.row_splits}) {
            outcome.columns += text(*buffer) + '|';
        }
    }
    return outcome;
}

// Memory for `rows` rows, in blocks of just that size, for every column that takes it.
std::vector<std::optional<Exact>> lend(dtf::Decoder& decoder, std::uint64_t rows) {
    std::vector<std::optional<Exact>> lent;
    for (dtf::Column& column : decoder.columns()) {
        const Layout layout = column.spec().layout;
        lent.emplace_back();
        const bool sized = layout == Layout::fixed || layout == Layout::raw || layout == Layout::located;
        if (column.stores_bytes() || !sized) continue;
        lent.back().emplace(std::string(static_cast<std::size_t>(rows) * column.slot(), '\0'));
        column.values = dtf::Buffer(lent.back()->data(), lent.back()->size());
    }
    return lent;
}

// Record by record: what lies where it is located is what is read, and what is refused is refused either way.
void check_places(const Sample& sample, const std::string& bytes, bool check, Random& random) {
    const auto [places, values] = places_and_values(sample, random);
    std::size_t at = 0;
    for (int record = 0; record < 8; ++record) {
        const Exact block(std::string_view(bytes).substr(at));
        const std::uint64_t offset = random.below(std::size_t{1} << 60);
        dtf::Decoder finder(places, check, false), reader(values, check, false);
        const dtf::Walk found = finder.feed(block.data(), block.size(), 1, offset);
        const dtf::Walk read = reader.feed(block.data(), block.size(), 1);
        const bool scattered = finder.problem().fault == dtf::Fault::scattered;
        REQUIRE(scattered || (found.stop == read.stop && finder.problem().fault == reader.problem().fault));
        if (found.stop != Stop::limit && found.stop != Stop::feature) return;
        for (std::size_t i = 0; i < places.size() && found.records == 1; ++i) {
            const std::string expected = text(reader.columns()[i].values);
            const auto place = static_cast<std::uint64_t>(finder.columns()[i].values.at<std::int64_t>(0)) - offset;
            REQUIRE(place <= block.size() && expected.size() <= block.size() - place);
            REQUIRE(view_of(block, static_cast<std::size_t>(place), expected.size()) == expected);
        }
        at += 16 + static_cast<std::size_t>(dtf::load<std::uint64_t>(block.data()));
    }
}

// Headers one by one, as the format says; where it stops, and why.
dtf::Walk scan_by_definition(const std::string& bytes, bool check, std::uint64_t limit) {
    dtf::Walk walk;
    for (;;) {
        if (walk.records == limit) {
            walk.stop = Stop::limit;
            break;
        }
        if (walk.consumed > bytes.size() || bytes.size() - walk.consumed < 12) break;
        const auto at = static_cast<std::size_t>(walk.consumed);
        if (check && !crc_holds(std::string_view(bytes).substr(at, 8), std::string_view(bytes).substr(at + 8, 4))) {
            walk.stop = Stop::framing;
            break;
        }
        const std::uint64_t length = dtf::load<std::uint64_t>(bytes_of(bytes) + at);
        if (length > dtf::absurd_length) break;
        walk.consumed += 16 + length;
        ++walk.records;
    }
    return walk;
}

void execute(const std::vector<Sample>& corpus, Random& random) {
    const Sample& sample = corpus[random.below(corpus.size())];
    const Sample& other = corpus[random.below(corpus.size())];
    const bool whole = random.below(4) != 0;
    const std::string bytes = whole ? mutated_records(sample, other, random) : mutated_block(sample, other, random);
    const bool check = whole || random.below(2) == 0;
    const bool closed = random.below(4) == 0;
    const Specs specs = some_columns(sample, random);

    const Exact block(bytes);
    for (const std::uint64_t limit : {UINT64_MAX, std::uint64_t{random.below(4)}}) {
        const dtf::Walk walk = dtf::Framing(check).scan(block.data(), block.size(), limit);
        const dtf::Walk expected = scan_by_definition(bytes, check, limit);
        REQUIRE(walk.records == expected.records && walk.consumed == expected.consumed && walk.stop == expected.stop);
    }

    check_places(sample, bytes, check, random);
    dtf::Decoder growing(specs, check, closed);
    const auto all = [] { return UINT64_MAX; };
    const Outcome once = run(growing, bytes, check, [&] { return bytes.size(); }, all);

    // In pieces, into memory with place for one record more, which those that are refused write to.
    const bool by_bytes = bytes.size() < 400 && random.below(2) == 0;
    const std::size_t longest = by_bytes ? 1 : 1 + bytes.size() / (1 + random.below(40));
    dtf::Decoder pieces(specs, check, closed);
    const auto memory = lend(pieces, once.records + 1);
    const auto few = [&]() -> std::uint64_t { return random.below(3) == 0 ? UINT64_MAX : 1 + random.below(3); };
    const Outcome again = run(pieces, bytes, check, [&] { return 1 + random.below(longest); }, few);
    REQUIRE(once.records == again.records && once.said == again.said && once.columns == again.columns);

    // Where there is place for fewer, the rest is refused.
    dtf::Decoder full(specs, check, closed);
    const std::uint64_t rows = once.records / 2;
    const auto less = lend(full, rows);
    const bool bounded = std::any_of(full.columns().begin(), full.columns().end(), [](dtf::Column& column) {
        return column.values.borrowed() && column.slot() > 0;
    });
    REQUIRE(run(full, bytes, check, [&] { return bytes.size(); }, all).records == (bounded ? rows : once.records));
}

}  // namespace

int main(int argc, char** argv) {
    char* first = nullptr;
    const double seconds = argc > 3 ? std::strtod(argv[1], nullptr) : 0;
    seed = argc > 3 ? std::strtoull(argv[2], &first, 10) : 0;
    if (argc <= 3 || seconds <= 0) {
        std::fprintf(stderr, "usage: native_fuzz SECONDS SEED[:FIRST] FILE...\n");
        return 2;
    }
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_set_death_callback(say_where);
#endif
    const std::vector<Sample> corpus = read_corpus(argv + 3, argv + argc);
    if (corpus.empty()) {
        std::fprintf(stderr, "native_fuzz: no record in any of the files; they have to be plain TFRecord files\n");
        return 2;
    }
    const std::uint64_t begin = *first == ':' ? std::strtoull(first + 1, nullptr, 10) : 0;
    const auto start = std::chrono::steady_clock::now();
    std::chrono::duration<double> taken{};
    for (execution = begin; taken.count() < seconds; ++execution) {
        Random random(seed * 0x9e3779b97f4a7c15u ^ execution * 0xd1342543de82ef95u);
        if (random.below(4) == 0) {
            fuzz_tensor(random);
        } else {
            execute(corpus, random);
        }
        taken = std::chrono::steady_clock::now() - start;
    }
    const std::uint64_t executions = execution - begin;
    std::printf("%zu files, %.0f executions/s\n", corpus.size(), static_cast<double>(executions) / taken.count());
    std::printf("%llu passed\n", static_cast<unsigned long long>(executions));
    return 0;
}
