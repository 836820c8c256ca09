"""What results say in words: cards of plug-ins, threat cards, how numbers were chosen."""
