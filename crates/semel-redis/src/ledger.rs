//! The verbs of the store: calls the scripts and reads their answers.

use redis::Value;
use semel_core::store::{
    Change, Cursor, Draft, Filter, Finding, Guarantee, Inspect, Listed, Listen, Opened, Page,
    Peeked, Replication, Result, Settled, Settlement, Store, Swapped, Swept, Tally,
};
use semel_core::{Fence, Key, Lease, State, Version};

use crate::error::Effect;
use crate::guard::{lease_guard, version_guard};
use crate::layout;
use crate::renewer::RedisRenewer;
use crate::script::{self, Call};
use crate::store::{PackedClaim, RedisStore, fence_of, record_and_now, untouched};
use crate::{check, listen, walk};

impl RedisStore {
    /// Checks the servers and returns what weakens the store's guarantee. An empty list means that
    /// nothing does.
    ///
    /// # Errors
    /// `Unavailable` if a server cannot be queried.
    pub async fn check(&self) -> Result<Vec<Finding>> {
        let servers = check::facts(&self.transport).await;
        let servers = servers.map_err(|failure| failure.during("check", Effect::Reads))?;
        self.guarantee.observe(servers.iter().map(|(_, facts)| facts));
        let declared_safe = self.guarantee.replication() != Replication::Asynchronous;
        Ok(check::findings(&servers, declared_safe))
    }
}

impl Store for RedisStore {
    type Renewer = RedisRenewer;

    async fn open(&self, draft: &Draft) -> Result<Opened> {
        let packed = PackedClaim::new("open", draft)?;
        let args = [
            &layout::head(State::Running)[..],
            &packed.attempt_id,
            &packed.rest,
            packed.collect.as_bytes(),
        ];
        let digest = draft.key.digest();
        let (value, short) = self.run("open", &script::OPEN, &digest, &args).await?;
        if let Value::Int(fence) = value {
            let fence = Fence::from_i64(fence);
            return match short {
                None => Ok(Opened::Inserted { fence }),
                Some(short) => {
                    let settlement = untouched(draft, false);
                    Err(Box::pin(self.take_back(draft, fence, settlement, short)).await)
                }
            };
        }
        let (record, now) = record_and_now("open", value)?;
        if !self.confirm(draft, &record).await? {
            return Ok(Opened::Contended);
        }
        Ok(Opened::Existing { record: Box::new(record), now })
    }

    async fn swap(&self, key: &Key, judged: Version, change: &Change) -> Result<Swapped> {
        let guard = version_guard(judged);
        let digest = key.digest();
        let value = match change {
            Change::Regrant(draft) => self.grant(&guard, &digest, draft, true).await?,
            Change::Replace(draft) => self.grant(&guard, &digest, draft, false).await?,
            Change::Settle(settlement) => self.end("swap", &digest, &guard, settlement).await?,
            Change::Redrive => self.redrive(&guard, &digest).await?,
            Change::Redate => self.redate(&guard, &digest).await?,
        };
        Ok(match fence_of("swap", &value)? {
            Some(fence) => Swapped::Done { fence },
            None => Swapped::Lost,
        })
    }

    async fn settle(&self, lease: &Lease, settlement: &Settlement) -> Result<Settled> {
        let value = self.end("settle", &lease.digest, &lease_guard(lease), settlement).await?;
        Ok(match fence_of("settle", &value)? {
            Some(_) => Settled::Done,
            None => Settled::Lost,
        })
    }

    async fn peek(&self, key: &Key) -> Result<Option<Peeked>> {
        let name = self.keys().name(&key.digest());
        let call = Call { script: &script::PEEK, key: &name, args: &[] };
        let answered = self.transport.call(&call).await;
        let value = answered.map_err(|failure| failure.during("peek", Effect::Reads))?;
        if value == Value::Nil {
            return Ok(None);
        }
        let (record, now) = record_and_now("peek", value)?;
        Ok(Some(Peeked { record, now }))
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        // If this fails, the last observation of the replicas stays, and the sweep continues.
        if let Ok(servers) = check::facts(&self.transport).await {
            self.guarantee.observe(servers.iter().map(|(_, facts)| facts));
        }
        walk::sweep(self, limit).await
    }

    async fn renewer(&self) -> Result<RedisRenewer> {
        RedisRenewer::connect(&self.settings).await
    }

    async fn listen(&self) -> Result<Option<Box<dyn Listen>>> {
        Ok(Some(Box::new(listen::Subscription::open(&self.settings).await?)))
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        RedisStore::check(self).await
    }

    fn guarantee(&self) -> Guarantee {
        self.guarantee.current()
    }
}

impl Inspect for RedisStore {
    async fn list(&self, filter: &Filter, after: Option<&Cursor>, limit: u32) -> Result<Page> {
        walk::list(self, filter, after, limit).await
    }

    async fn survey(
        &self,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Listed>> {
        walk::survey(self, filter, after, limit).await
    }

    async fn tally(&self, filter: &Filter) -> Result<Tally> {
        walk::tally(self, filter).await
    }
}
