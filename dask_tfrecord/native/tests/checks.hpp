// Minimal test framework: checks that continue after a failure, and a main function that counts failures.
#pragma once

#include <cstddef>
#include <cstdio>

namespace checks {

inline int failures = 0;

inline void report(bool holds, const char* what, const char* file, int line) {
    if (holds) return;
    ++failures;
    std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
}

#define CHECK(...) checks::report((__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)

struct Test {
    const char* name;
    void (*body)();
};

#define TEST(name) {#name, name}

// Run all tests and return the exit status of the program.
template <std::size_t N>
int run(const Test (&tests)[N]) {
    int passed = 0, failed = 0;
    for (const Test& test : tests) {
        failures = 0;
        test.body();
        ++(failures == 0 ? passed : failed);
        std::printf("%s %s\n", failures == 0 ? "PASSED" : "FAILED", test.name);
        std::fflush(stdout);
    }
    if (failed > 0) std::printf("%d failed, ", failed);
    std::printf("%d passed\n", passed);
    return failed == 0 ? 0 : 1;
}

}  // namespace checks
