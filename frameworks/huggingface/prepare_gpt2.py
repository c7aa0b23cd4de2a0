"""Leave a tiny GPT-2 that knows nothing in `random-gpt2/`: runs before train_unsloth.py."""

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed

MODEL = "tiny-gpt2"


def main() -> None:
    """Save a model as one that is taken from the hub would be."""
    set_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(MODEL)).save_pretrained(
        "random-gpt2"
    )
    AutoTokenizer.from_pretrained(MODEL).save_pretrained("random-gpt2")


if __name__ == "__main__":
    main()
