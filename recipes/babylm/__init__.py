"""What BabyLM's recipes share: settings, data, the text and the caption stage, results."""
