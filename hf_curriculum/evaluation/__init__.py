"""What a trained model can do: captions generated for images, and how good they are; `babylm/` has the challenge."""
