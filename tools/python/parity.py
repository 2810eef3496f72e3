"""linnet beside transformers, on models of random weights; tools/parity says how to call it."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers as hf  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

TOLERANCE = 1e-5
TEXT = "the old ship sails over a sea of sand"


def byte_symbols():
    """The characters that stand for the bytes in vocabularies of byte-level BPE."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b if b in plain else next(others)) for b in range(256)]


def write_byte_bpe(folder, before, after):
    """A byte-level BPE without merges beyond the first: special tokens around the bytes."""
    words = [*before, *byte_symbols(), "th", *after]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\nt h\n")
    return len(words)


def bert(folder):
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + c for c in letters), "the"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return hf.BertModel(hf.BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=80, max_position_embeddings=60, type_vocab_size=2))


def roberta(folder):
    count = write_byte_bpe(folder, ["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"])
    return hf.RobertaModel(hf.RobertaConfig(
        vocab_size=count, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=80, max_position_embeddings=62, type_vocab_size=1, layer_norm_eps=1e-5,
        pad_token_id=1, bos_token_id=0, eos_token_id=2))


def gpt2(folder):
    end = write_byte_bpe(folder, [], ["<|endoftext|>"]) - 1
    return hf.GPT2LMHeadModel(hf.GPT2Config(
        vocab_size=end + 1, n_positions=60, n_embd=32, n_layer=3, n_head=4,
        bos_token_id=end, eos_token_id=end))


def t5(folder, feed_forward="relu"):
    """With more rows than the tokenizer has ids, as T5-base."""
    symbols = [*"abcdefghijklmnopqrstuvwxyz", "th", "\u2581the", "\u2581sea", "sh"]
    vocab = [["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["\u2581", -2.0]]
    vocab += [[symbol, -3.0 - len(symbol) / 2 - i / 50] for i, symbol in enumerate(symbols)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram([tuple(each) for each in vocab], 2, False))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.WhitespaceSplit(),
        tokenizers.pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")])
    tokenizer.decoder = tokenizers.decoders.Metaspace(replacement="\u2581", prepend_scheme="always")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", "<extra_id_0>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return hf.T5Model(hf.T5Config(
        vocab_size=len(vocab) + 5, d_model=32, d_kv=8, d_ff=80, num_layers=3, num_decoder_layers=2,
        num_heads=4, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
        feed_forward_proj=feed_forward))


def gated_t5(folder):
    return t5(folder, "gated-gelu")


# A family: its model of random weights, after its tokenizer's files were written to the folder. And a
# decoder that classifies, whose ids are not GPT-2's: exported without being imported.
CLASSIFIER = ["model.head=last_token", "train={max_steps: 0, examples_per_update: 4, micro_batch: 4}",
              "data={kind: tsv, path: rows.tsv, tokenizer: {kind: byte}}", "init=null"]
CASES = {"bert": (bert, []), "roberta": (roberta, []), "gpt2": (gpt2, []),
         "gpt2 classifier": (gpt2, CLASSIFIER), "t5": (t5, []), "t5 gated": (gated_t5, [])}


def randomise(model):
    """Weights of deviation 0.2, gains around 1: no initial value hides a mistake. T5's queries are as much
    smaller as other families' attention divides them: else transformers alone is 1.6e-5 off its doubles."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        values = 0.2 * torch.randn(parameter.shape, generator=generator)
        if name.endswith("Attention.q.weight"):
            values *= model.config.d_kv ** -0.5
        gain = parameter.dim() == 1 and name.endswith("weight")
        parameter.data.copy_(values + 1 if gain else values)


def worst(found, expected):
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return (found - expected).abs().max().item()


def stack_pairs(out, stack, hidden):
    """Vectors of one of T5's stacks; the last ones are behind its final norm."""
    return [(out[f"{stack}.layers.{i}.hidden"], hidden[i + 1][0]) for i in range(len(hidden) - 2)]


def t5_differences(model, out):
    ids = out["ids"].long()[None]
    with torch.no_grad():
        result = model(ids, decoder_input_ids=model._shift_right(ids), output_hidden_states=True,
                       output_attentions=True)
    encoder, decoder = result.encoder_hidden_states, result.decoder_hidden_states
    pairs = [(out["embedded"], encoder[0][0]), (out["encoder.final"], encoder[-1][0]),
             (out["final"], decoder[-1][0]), *stack_pairs(out, "encoder", encoder),
             *stack_pairs(out, "decoder", decoder)]
    kinds = {"encoder.layers.{}.attention": result.encoder_attentions,
             "decoder.layers.{}.attention": result.decoder_attentions,
             "decoder.layers.{}.cross_attention": result.cross_attentions}
    weights = [worst(out[name.format(i)], expected[0]) for name, layers in kinds.items()
               for i, expected in enumerate(layers)]
    return max(worst(*pair) for pair in pairs), max(weights)


def trunk_differences(model, out):
    """Of what transformers computes of the same ids: hidden states, attention weights."""
    if model.config.is_encoder_decoder:
        return t5_differences(model, out)
    with torch.no_grad():
        result = model(out["ids"].long()[None], output_hidden_states=True, output_attentions=True)
    hidden = [each[0] for each in result.hidden_states]
    layers = len(hidden) - 1
    pairs = [(out["embedded"], hidden[0]), (out["final"], hidden[-1])]
    # The last entry is behind the final norm, where there is one.
    pairs += [(out[f"layers.{i}.hidden"], hidden[i + 1]) for i in range(layers - 1)]
    weights = [worst(out[f"layers.{i}.attention"], result.attentions[i][0]) for i in range(layers)]
    return max(worst(*pair) for pair in pairs), max(weights)


def compare(name, make, changes, linnet, folder):
    def run(*arguments):
        done = subprocess.run([linnet, *arguments], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"parity: linnet {' '.join(arguments)}\n{done.stderr}")

    (folder / "model").mkdir()
    model = make(folder / "model")
    randomise(model)
    model.save_pretrained(folder / "model")
    encoder = not name.startswith("gpt2")
    (folder / "rows.tsv").write_text("text\tlabel\n" + "the old ship\tgood\nsea of sand\tbad\n" * 20)
    (folder / "texts").mkdir()
    (folder / "texts" / "a.txt").write_text((TEXT + "\n") * 60)
    run("model", "import", "model", "--out", "model.yaml")
    data = ["data.path=rows.tsv"] if encoder else ["data.validation_fraction=0.2"]
    run("train", "model.yaml", *(changes or data), "data.context=48", "data.cache=false",
        "train.max_steps=0", "optim.schedule={kind: constant}",
        "evaluate={every_steps: 0, at_end: false}", "--out", "run")
    source = ["--ids", "5,17,90,41,2,77"] if changes else ["--text", TEXT]
    run("model", "run", "run", *source, "--attention", "all", "--out", "out.safetensors")
    run("model", "export", "run", "--to", "exported")
    out = load_file(folder / "out.safetensors")

    def differences(where):
        trunk = hf.AutoModel.from_pretrained(folder / where, attn_implementation="eager")
        return trunk_differences(trunk.eval(), out)

    exported, weights = differences("exported")
    imported = exported if changes else differences("model")[0]
    kind = hf.AutoModelForSequenceClassification if encoder or changes else hf.AutoModelForCausalLM
    headed = kind.from_pretrained(folder / "exported").eval()
    if encoder or changes:
        assert headed.config.id2label == {0: "bad", 1: "good"}, headed.config.id2label
    with torch.no_grad():
        logits = worst(out["logits"], headed(out["ids"].long()[None]).logits[0])
    ids = out["ids"].tolist()
    same = bool(changes) or hf.AutoTokenizer.from_pretrained(folder / "exported")(TEXT)["input_ids"] == ids
    print(f"{name:16} hidden {imported:.1e}  attention {weights:.1e}  exported {exported:.1e}  "
          f"logits {logits:.1e}  tokens {'equal' if same else 'DIFFER'}")
    return same and max(imported, weights, exported, logits) <= TOLERANCE


def main(linnet):
    hf.logging.set_verbosity_error()
    print(f"largest differences, torch {torch.__version__}, transformers {hf.__version__}")
    good = True
    for name, (make, changes) in CASES.items():
        with tempfile.TemporaryDirectory() as made:
            good = compare(name, make, changes, linnet, Path(made)) and good
    print("parity: all within" if good else "parity: NOT within", TOLERANCE)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
