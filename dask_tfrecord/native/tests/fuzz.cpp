// native_fuzz SECONDS SEED[:FIRST] FILE...: mutated records of real files through the native core, under sanitizers.
//
// Every execution follows from the seed and its number alone: a failure names both, and SEED:NUMBER starts there.
#include "column_fuzz.hpp"
#include "message_fuzz.hpp"
#include "png_fuzz.hpp"
#include "varint_fuzz.hpp"

#include <chrono>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace {

using namespace fuzzing;
using namespace support;

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

// Record by record: splits are the same whether values are kept or counted, and what is refused is refused either way.
void check_counts(const Specs& specs, const std::string& bytes, bool check, bool closed, Message message) {
    dtf::Decoder counter(counting(specs), check, closed, message), reader(specs, check, closed, message);
    std::size_t at = 0;
    for (int record = 0; record < 8; ++record) {
        const Exact block(std::string_view(bytes).substr(at));
        const dtf::Walk counted = counter.feed(block.data(), block.size(), 1);
        const dtf::Walk read = reader.feed(block.data(), block.size(), 1);
        REQUIRE(counted.stop == read.stop && counted.records == read.records && counted.consumed == read.consumed);
        REQUIRE(said_of(counter.problem()) == said_of(reader.problem()));
        REQUIRE(splits_in(counter) == splits_in(reader));
        if (read.stop != Stop::limit && read.stop != Stop::feature) return;
        at += 16 + static_cast<std::size_t>(dtf::load<std::uint64_t>(block.data()));
    }
}

// Reference implementation of a walk over headers, with its stop reason.
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

// Records selected block by block equal those fed one at a time.
void check_picks(const std::function<dtf::Decoder()>& make, const std::string& bytes, bool check, Random& random) {
    std::vector<std::int64_t> wanted;
    for (int number = 0; number < 10; ++number) {
        if (random.below(3) == 0) wanted.push_back(number);
    }
    dtf::Decoder alone = make(), picked = make();
    std::uint64_t passed = 0, at = 0;
    Stop stop = Stop::limit;
    const auto rest = [&] { return Exact(std::string_view(bytes).substr(std::min<std::uint64_t>(at, bytes.size()))); };
    for (std::size_t i = 0; i < wanted.size() && stop == Stop::limit; ++i) {
        const Exact before = rest();
        const std::uint64_t between = static_cast<std::uint64_t>(wanted[i]) - passed;
        dtf::Walk walk = dtf::Framing(check).scan(before.data(), before.size(), between);
        passed += walk.records;
        at += walk.consumed;
        if (walk.stop == Stop::limit) {
            const Exact block = rest();
            walk = alone.feed(block.data(), block.size(), 1);
            passed += walk.records;
            at += walk.consumed;
        }
        stop = walk.stop;
    }

    const std::size_t longest = 1 + bytes.size() / (1 + random.below(10));
    std::uint64_t first = 0, begin = 0, end = 0;
    std::size_t done = 0;
    dtf::Walk walk;
    for (bool more = true; more;) {
        const Exact block(begin < end ? std::string_view(bytes).substr(begin, end - begin) : std::string_view());
        walk = picked.feed_selected(block.data(), block.size(), first, wanted.data() + done, wanted.size() - done);
        REQUIRE(walk.stop != Stop::more || walk.consumed > block.size() || walk.need > block.size() - walk.consumed);
        first += walk.records;
        begin += walk.consumed;
        while (done < wanted.size() && wanted[done] < static_cast<std::int64_t>(first)) ++done;
        more = walk.stop == Stop::more && end < bytes.size();
        end = std::min<std::uint64_t>(bytes.size(), std::max(begin, end) + 1 + random.below(longest));
    }
    REQUIRE(first == passed && begin == at && walk.stop == stop);
    REQUIRE(contents(picked) == contents(alone) && said_of(picked.problem()) == said_of(alone.problem()));
}

constexpr Message messages[] = {Message::example, Message::sequence_example, Message::example_list};

void execute(const std::vector<Sample>& corpus, Random& random) {
    const Sample& sample = corpus[random.below(corpus.size())];
    const Sample& other = corpus[random.below(corpus.size())];
    const bool whole = random.below(4) != 0;
    const std::string bytes = whole ? mutated_records(sample, other, random) : mutated_block(sample, other, random);
    const bool check = whole || random.below(2) == 0;
    const bool closed = random.below(4) == 0;
    const Specs specs = some_columns(sample, random);
    // Now and then as what it is not.
    const Message message = random.below(40) != 0 ? sample.message : messages[random.below(std::size(messages))];

    const Exact block(bytes);
    for (const std::uint64_t limit : {UINT64_MAX, std::uint64_t{random.below(4)}}) {
        const dtf::Walk walk = dtf::Framing(check).scan(block.data(), block.size(), limit);
        const dtf::Walk expected = scan_by_definition(bytes, check, limit);
        REQUIRE(walk.records == expected.records && walk.consumed == expected.consumed && walk.stop == expected.stop);
    }
    std::vector<std::int64_t> ends(1 + random.below(4));
    const dtf::Walk walked = dtf::Framing(check).ends(block.data(), block.size(), ends.data(), ends.size());
    REQUIRE(walked.records == scan_by_definition(bytes, check, ends.size()).records);
    for (std::size_t i = 0; i < walked.records; ++i) {
        REQUIRE(static_cast<std::uint64_t>(ends[i]) == scan_by_definition(bytes, check, i + 1).consumed);
    }

    check_alone(specs, bytes, check, closed, message);
    check_counts(specs, bytes, check, closed, message);
    check_picks([&] { return dtf::Decoder(specs, check, closed, message); }, bytes, check, random);
    dtf::Decoder growing(specs, check, closed, message);
    const auto all = [] { return UINT64_MAX; };
    const Outcome once = run(growing, bytes, check, [&] { return bytes.size(); }, all);

    // In pieces, into memory with place for one record more, which those that are refused write to.
    const bool by_bytes = bytes.size() < 400 && random.below(2) == 0;
    const std::size_t longest = by_bytes ? 1 : 1 + bytes.size() / (1 + random.below(40));
    dtf::Decoder pieces(specs, check, closed, message);
    const auto memory = lend(pieces, once.records + 1);
    const auto begun = offer(pieces, random);
    const auto few = [&]() -> std::uint64_t { return random.below(3) == 0 ? UINT64_MAX : 1 + random.below(3); };
    const Outcome again = run(pieces, bytes, check, [&] { return 1 + random.below(longest); }, few);
    REQUIRE(once.records == again.records && once.said == again.said && once.columns == again.columns);

    // A smaller output buffer refuses the remaining records.
    dtf::Decoder full(specs, check, closed, message);
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
    std::vector<Sample> corpus = read_corpus(argv + 3, argv + argc);
    if (corpus.empty()) {
        std::fprintf(stderr, "native_fuzz: no record in any of the files; they have to be plain TFRecord files\n");
        return 2;
    }
    const std::size_t files = corpus.size();
    for (std::uint64_t which = 0; which < 12; ++which) {
        for (const Message message : messages) {
            corpus.push_back(made_sample(message, which));
        }
    }
    const std::uint64_t begin = *first == ':' ? std::strtoull(first + 1, nullptr, 10) : 0;
    const auto start = std::chrono::steady_clock::now();
    std::chrono::duration<double> taken{};
    for (execution = begin; taken.count() < seconds; ++execution) {
        Random random(seed * 0x9e3779b97f4a7c15u ^ execution * 0xd1342543de82ef95u);
        if (random.below(4) == 0) {
            fuzz_tensor(random);
            fuzz_tensors(random);
            fuzz_png(random);
            fuzz_varints(any_payload(corpus[random.below(corpus.size())], random), random);
        } else if (random.below(3) == 0) {
            fuzz_messages(any_payload(corpus[random.below(corpus.size())], random), random);
        } else {
            execute(corpus, random);
        }
        taken = std::chrono::steady_clock::now() - start;
    }
    const std::uint64_t executions = execution - begin;
    std::printf("%zu files, %.0f executions/s\n", files, static_cast<double>(executions) / taken.count());
    std::printf("%llu passed\n", static_cast<unsigned long long>(executions));
    return 0;
}
