"""A model small enough for a slow CPU: a Llama of 12 million parameters, whose weights the engine draws by itself, and
a tokenizer trained on the spot. It says nothing sensible, but a long prompt takes visibly longer than a cached one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from headway.load.prompt_texts import WORDS as LOAD_WORDS

NAME: Final = "tiny"
VOCABULARY: Final = 2000  # at most; one word becomes one token
CONTEXT: Final = 8192
END, TURN = "<|end|>", "<|turn|>"
TEXT: Final = (
    "a river runs past the old mill and under the bridge where carts once stood waiting for grain "
    "morning light falls on the fields while farmers walk home with baskets of apples pears and late plums "
    "ships leave the harbour at dawn carrying timber wool glass and letters to towns along the northern coast "
    "engineers measure pressure heat current and time and write each number in a narrow column of the book"
)
WORDS: Final = TEXT.split()

CONFIG: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": None,
    "eos_token_id": 0,
}
TEMPLATE: Final = (
    "{% if reasoning_effort %}<|turn|>{{ reasoning_effort }} {{ enable_thinking }}<|end|>{% endif %}"
    "{% if tools %}<|turn|>tools\n{{ tools | tojson }}<|end|>{% endif %}"
    "{% for message in messages %}<|turn|>{{ message['role'] }}\n"
    "{{ message['reasoning_content'] }}{{ message['content'] }}{% for call in message['tool_calls'] %}"
    "{{ call['function']['name'] }}{{ call['function']['arguments'] | tojson }}{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def text(words: int, start: int) -> str:
    """So many words, others for each start; each start gives the same ones always."""
    state = start * 2_654_435_761 + 1
    found = []
    for _ in range(words):
        state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        found.append(WORDS[(state >> 33) % len(WORDS)])
    return " ".join(found)


def write(folder: Path) -> Path:
    """The files that an engine wants: configuration, tokenizer and chat template, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)  # the first word is a token too
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sent = b"".join(LOAD_WORDS).decode()  # what `headway load` says
    tokenizer.train_from_iterator([*(text(200, start) for start in range(20)), *[sent] * 20], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    for name, content in (
        ("config.json", {**CONFIG, "vocab_size": tokenizer.get_vocab_size()}),
        ("tokenizer_config.json", settings),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    return folder


def no_blanks(folder: Path) -> dict[str, int]:
    """A `logit_bias` against white space, with which a model without sense would fill any JSON."""
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    return {str(vocabulary[blank]): -100 for blank in "ĠĉĊč"}  # as byte-level tokens write space, tab and line ends


def only_words(folder: Path) -> list[int]:
    """`allowed_token_ids` that are each a word: the others may be half a letter, which is told with the next."""
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    return sorted(vocabulary[f"Ġ{word}"] for word in dict.fromkeys(WORDS) if f"Ġ{word}" in vocabulary)
