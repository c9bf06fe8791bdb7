// The keys of maps in records, found by where they stood in the record before.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cursor.hpp"

namespace dtf {

// The keys of one map: which column each stands for. Records of a file mostly repeat the order of their keys, so what
// stood here last time is tried first, whether it is a column's or not.
class Keys {
public:
    struct Key {
        Key(std::string name, int of) : head(name), text(std::move(name)), column(of) {}

        EntryHead head;
        std::string text;
        int column;  // none below 0: the key was judged where it stood before
    };

    void add(const std::string& text, int column) {
        const Key& key = keys_.emplace_back(text, column);
        known_.emplace(key.text, &key);
    }
    void begin_record() { place_ = 0; }

    // Goes past the entry that a map goes on with, if it is a short one with the key that stood here last time, and a
    // value behind it.
    DTF_INLINE const Key* repeated(Cursor& map, Cursor& value) {
        if (place_ >= expected_.size()) return nullptr;
        const Key* key = expected_[place_];
        if (key->head.size == 0 || !map.short_entry(key->head, value)) return nullptr;
        ++place_;
        return key;
    }

    // What is known of a key; nothing where it is no column's and was not judged before.
    DTF_INLINE const Key* find(Cursor key) {
        const std::size_t place = place_++;
        if (place < expected_.size() && is(expected_[place]->text, key)) return expected_[place];
        return look_up(key, place);
    }

    // The key that was just looked for is no column's, and has been judged: where it stands again it need not be.
    DTF_APART void pass(Cursor key) {
        if (passed_ == most_passed || key.left() > longest_passed) return;
        ++passed_;
        expect(place_ - 1, keys_.emplace_back(std::string(text_of(key)), -1));
    }

private:
    static constexpr std::size_t most_expected = 1024, longest_passed = 100;
    // Of records that never repeat their order, no more is learnt at some time.
    static constexpr std::size_t most_passed = 1024;

    static std::string_view text_of(Cursor key) {
        return {reinterpret_cast<const char*>(key.here()), key.left()};
    }

    static bool is(std::string_view text, Cursor key) { return text.size() == key.left() && key.pass(text); }

    DTF_APART const Key* look_up(Cursor key, std::size_t place) {
        const auto known = known_.find(text_of(key));
        if (known == known_.end()) return nullptr;
        expect(place, *known->second);
        return known->second;
    }

    void expect(std::size_t place, const Key& key) {
        if (place < expected_.size()) {
            expected_[place] = &key;
        } else if (place == expected_.size() && place < most_expected) {
            expected_.push_back(&key);
        }
    }

    std::deque<Key> keys_;  // the columns' own, and those that no column has, as far as they are remembered
    std::unordered_map<std::string_view, const Key*> known_;
    std::vector<const Key*> expected_;
    std::size_t passed_ = 0;
    std::size_t place_ = 0;
};

}  // namespace dtf
