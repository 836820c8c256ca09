"""What a run says in words: which findings speak for it, the headline, the stories, the policy."""
