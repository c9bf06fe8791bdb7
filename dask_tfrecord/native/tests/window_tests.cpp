// Tests of reading window by window: the same records, in the same order, as one feed of all bytes.
#include "checks.hpp"
#include "support.hpp"
#include "windows.hpp"

namespace {

using namespace support;
using dtf::Framing;
using dtf::Stop;
using dtf::Walk;

// Records that a walk passed, with the byte where each begins.
struct Passed {
    std::vector<std::pair<std::uint64_t, std::string>> records;
    Walk walk;
    dtf::View view;
};

// A source that reads few bytes at a time, is interrupted now and then, and fails at byte `fails`.
struct Hesitant {
    const std::string& bytes;
    Random& random;
    std::uint64_t fails;

    std::ptrdiff_t operator()(std::uint8_t* out, std::size_t size, std::uint64_t position) const {
        if (random.below(5) == 0) {
            errno = EINTR;
            return -1;
        }
        if (position >= fails) {
            errno = EIO;
            return -1;
        }
        const std::size_t most = static_cast<std::size_t>(std::min<std::uint64_t>(fails, bytes.size()) - position);
        const std::size_t got = std::min({size, most, 1 + random.below(64)});
        std::copy_n(bytes_of(bytes) + position, got, out);
        return static_cast<std::ptrdiff_t>(got);
    }
};

auto taking(Passed& passed, std::uint64_t refused) {
    return [&passed, refused](const std::uint8_t* data, std::size_t size, std::uint64_t limit, std::uint64_t at) {
        std::uint64_t begins = at;
        return Framing(true).each(data, size, limit, [&](dtf::Cursor payload) {
            if (passed.records.size() == refused) return false;
            const std::string_view text(reinterpret_cast<const char*>(payload.here()), payload.left());
            passed.records.emplace_back(begins, text);
            begins += dtf::header_size + text.size() + dtf::footer_size;
            return true;
        });
    };
}

void equals_one_feed() {
    Random random(7);
    for (int round = 0; round < 3000; ++round) {
        std::string bytes;
        for (std::size_t left = random.below(12); left > 0; --left) {
            bytes += framed(std::string(random.below(100), static_cast<char>('a' + random.below(26))));
        }
        const std::size_t records_size = bytes.size();
        if (random.below(3) == 0) bytes += std::string(random.below(11), 'z');
        if (random.below(6) == 0 && !bytes.empty()) bytes[random.below(bytes.size())] ^= 1;
        const std::uint64_t limit = random.below(3) == 0 ? random.below(10) : UINT64_MAX;
        const std::uint64_t last = random.below(3) == 0 ? random.below(bytes.size() + 9) : UINT64_MAX;
        const std::uint64_t refused = random.below(5) == 0 ? random.below(8) : UINT64_MAX;
        const std::uint64_t fails = random.below(6) == 0 ? random.below(bytes.size() + 1) : bytes.size();

        Passed whole;
        const std::size_t fed = static_cast<std::size_t>(std::min<std::uint64_t>({bytes.size(), last, fails}));
        whole.walk = taking(whole, refused)(bytes_of(bytes), fed, limit, 0);

        // The caller of a window goes on where a call ends, with a larger window if it has to.
        Passed parts;
        std::size_t capacity = 1 + random.below(150);
        std::string memory(capacity, '\0');
        std::uint64_t consumed = 0, passed = 0;
        for (;;) {
            Exact buffer(memory);
            const dtf::Reach reach{random.below(bytes.size() + 20), bytes.size(), 1 + random.below(400),
                                   1 + random.below(40), 1 + random.below(200)};
            const Hesitant source{bytes, random, fails};
            dtf::Windows windows(buffer.data(), buffer.size(), parts.view, reach, source);
            const std::uint64_t before = parts.view.position;
            Passed more;
            more.records.swap(parts.records);
            const std::uint64_t start = consumed;
            parts.walk = windows.each(limit == UINT64_MAX ? limit : limit - passed,
                                      last == UINT64_MAX ? last : last - consumed,
                                      [&](const std::uint8_t* data, std::size_t size, std::uint64_t most,
                                          std::uint64_t at) { return taking(more, refused)(data, size, most, start + at); });
            parts.records.swap(more.records);
            consumed += parts.walk.consumed;
            passed += parts.walk.records;
            memory.assign(reinterpret_cast<char*>(buffer.data()), buffer.size());
            CHECK(parts.view.begin <= parts.view.end && parts.view.end <= capacity);
            CHECK(parts.view.position - (parts.view.end - parts.view.begin) == consumed);
            if (parts.walk.stop != Stop::more) break;
            if (last != UINT64_MAX && parts.walk.need > last - consumed) break;
            const std::uint64_t need = parts.walk.need;
            if (need > bytes.size() - consumed || consumed + need > fails) break;
            if (need > capacity) {
                capacity = static_cast<std::size_t>(need);
                memory.resize(capacity);
            } else {
                CHECK(parts.view.position > before || parts.walk.records > 0);
            }
        }
        CHECK(parts.records == whole.records);
        CHECK(parts.walk.stop == whole.walk.stop);
        CHECK(consumed == whole.walk.consumed);
        CHECK(parts.walk.stop != Stop::more || parts.walk.need == whole.walk.need);
        CHECK(consumed <= std::max(records_size, bytes.size()));
    }
}

void reads_no_more_than_planned() {
    std::string bytes;
    for (int i = 0; i < 20; ++i) bytes += framed(std::string(84, 'x'));  // 100 bytes each
    std::uint64_t furthest = 0;
    const auto read = [&](std::uint8_t* out, std::size_t size, std::uint64_t position) {
        furthest = std::max<std::uint64_t>(furthest, position + size);
        std::copy_n(bytes_of(bytes) + position, size, out);
        return static_cast<std::ptrdiff_t>(size);
    };
    Passed passed;
    Exact buffer(std::string(1000, '\0'));
    dtf::Windows windows(buffer.data(), buffer.size(), passed.view, {700, bytes.size(), 10'000, 16, 1000}, read);
    passed.walk = windows.each(7, UINT64_MAX, taking(passed, UINT64_MAX));
    CHECK(passed.walk.stop == Stop::limit && passed.walk.records == 7 && passed.walk.consumed == 700);
    CHECK(furthest == 700);
}

const checks::Test tests[] = {
    TEST(equals_one_feed),
    TEST(reads_no_more_than_planned),
};

}  // namespace

int main() { return checks::run(tests); }
