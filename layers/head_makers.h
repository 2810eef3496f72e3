// The heads, each in a file of its own.
#pragma once

#include "layers/heads.h"

namespace linnet {

// logits = hidden table^T with the embedding as the table, or a table of its own where
// model.tie_embeddings is off (parameter "output.weight").
Head make_table_head(const HeadParts& parts);

// Adaptive softmax (Grave et al. 2017) with the tables of model.embedding adaptive, or tables of
// its own where model.tie_embeddings is off (parameters "head.bands").
Head make_adaptive_head(const HeadParts& parts);

// Linear - activation - norm, then logits by the embedding's table and a bias for each word, as
// BERT's and RoBERTa's masked language models. The activation is that of the feed-forward, GELU
// where that is SwiGLU (parameters "head.dense", "head.norm" and "head.bias").
Head make_masked_lm_head(const HeadParts& parts);

// Pooled vectors -> Linear - ReLU - Linear, as Long Range Arena's code has it. With two rows an
// example, the head reads [a; b; a * b; a - b] of their pooled vectors (parameters "head.hidden"
// and "head.classes").
Head make_lra_head(const HeadParts& parts);

// Dropout - Linear - tanh - dropout - Linear on the first token's vector, as RoBERTa's classifier,
// or, in kind encoder_decoder, on the last valid token's, as T5's; BERT's has no dropout before its
// pooler (parameters "head.pooler" and "head.classes").
Head make_pooler_head(const HeadParts& parts);

// Linear without bias on the last valid token's vector, as GPT-2's classifier (parameter
// "head.classes.weight").
Head make_last_token_head(const HeadParts& parts);

}  // namespace linnet
