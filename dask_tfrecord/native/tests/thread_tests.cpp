// Tests of what threads share: spare memory, tables, and the bytes of a shard. Run under ThreadSanitizer.
#include "checks.hpp"
#include "fed.hpp"

#include <atomic>
#include <mutex>
#include <thread>

namespace {

using namespace support;
using dtf::Kind;
using dtf::ValueLayout;

constexpr std::size_t nthreads = 4;

template <class Work>
void on_threads(Work work) {
    std::vector<std::thread> threads;
    threads.reserve(nthreads);
    for (std::size_t number = 0; number < nthreads; ++number) threads.emplace_back([&work, number] { work(number); });
    for (std::thread& thread : threads) thread.join();
}

void decoders_read_the_same_bytes() {
    std::string bytes;
    for (std::int64_t number = 0; number < 400; ++number) {
        bytes += framed(example(entry("i", int64_list({number, 300, -number})) + entry("f", float_list({0.5f})) +
                                entry("b", bytes_list({"some text"}))));
    }
    const Specs specs{spec("i", Kind::int64, ValueLayout::ragged), spec("f", Kind::floats, ValueLayout::fixed),
                      text_spec("b", ValueLayout::fixed)};
    const auto read = [&] {
        dtf::Decoder decoder(specs, true, true);
        const dtf::Walk walk = decoder.feed(bytes_of(bytes), bytes.size(), UINT64_MAX);
        return std::to_string(walk.records) + contents(decoder);
    };
    std::atomic<std::size_t> wrong{0};
    std::vector<std::string> found(nthreads);
    // The first uses of tables and of the kind of the processor are at the same time, too.
    on_threads([&](std::size_t number) { found[number] = read(); });
    for (const std::string& each : found) wrong += each != read();
    CHECK(wrong == 0);
}

// Blocks of decoded rows are often freed by another thread than filled them, and the next ones take their memory.
void memory_moves_between_threads() {
    std::mutex mutex;
    std::vector<std::pair<dtf::Memory, std::uint8_t>> given;
    std::atomic<std::size_t> wrong{0};
    on_threads([&](std::size_t number) {
        Random random(number);
        for (std::size_t round = 0; round < 60; ++round) {
            dtf::Buffer buffer;
            const auto byte = static_cast<std::uint8_t>(random.next());
            std::size_t size = 0;
            // It grows from the heap to a mapping, which is new or spare, and to a larger one.
            for (const std::size_t more : {std::size_t{1000}, std::size_t{5} << 20, random.below(std::size_t{5} << 20)}) {
                std::uint8_t* place = buffer.grow(more);
                if (more > 0) place[0] = place[more - 1] = byte;
                size += more;
            }
            wrong += buffer.size() != size || buffer.data()[0] != byte || buffer.data()[999] != byte;
            dtf::Memory released = buffer.release();
            const std::lock_guard<std::mutex> lock(mutex);
            if (!given.empty()) {
                wrong += given.back().first.data()[0] != given.back().second;
                given.pop_back();
            }
            given.emplace_back(std::move(released), byte);
        }
    });
    CHECK(wrong == 0 && given.size() == 1);
}

const checks::Test tests[] = {
    TEST(decoders_read_the_same_bytes),
    TEST(memory_moves_between_threads),
};

}  // namespace

int main() { return checks::run(tests); }
