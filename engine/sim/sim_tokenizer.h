// The sim engine's vocabulary: 256 bytes, four special tokens, then words of plain letters. Text is
// encoded byte by byte; the sim engine answers with words, so that its output reads as text.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "engine/tokenizer.h"

namespace tandem {

inline constexpr TokenId kSimBegin = 256;
inline constexpr TokenId kSimEnd = 257;  // End of text
inline constexpr TokenId kSimTurnStart = 258;
inline constexpr TokenId kSimTurnEnd = 259;  // Ends an answer too
inline constexpr TokenId kSimFirstWord = 260;
inline constexpr int kSimVocabMin = 512;

inline int sim_vocab(const SimConfig& config) { return std::max(config.vocab, kSimVocabMin); }
inline bool sim_is_end(TokenId token) { return token == kSimEnd || token == kSimTurnEnd; }
std::string sim_tokenizer_digest(const SimConfig& config);

Result<std::unique_ptr<Tokenizer>> make_sim_tokenizer(const Config& config);

}  // namespace tandem
