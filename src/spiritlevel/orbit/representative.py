def representative(objective, group=None):
    raise NotImplementedError
