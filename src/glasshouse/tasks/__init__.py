"""What clients train for: classes, labels, numbers, masks, next tokens, the input itself. One file each."""
