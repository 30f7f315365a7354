"""`python -m hf_curriculum.cli`, which is what `accelerate launch -m` runs."""

from hf_curriculum.cli import app

if __name__ == "__main__":
    app()
